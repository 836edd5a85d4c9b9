//! Scenarios over one shared cluster; each has a namespace and nodes of its own.

mod bad_input;
mod console;
mod elastic;
mod elsewhere;
mod explain;
mod failure;
mod idle;
mod install;
mod life;
mod live;
mod logs;
mod native;
mod node_agents;
mod obstacles;
mod oncall;
mod placement;
mod preemption;
mod readme;
mod removal;
mod restart;
mod samples;
mod screens;
mod shift;
mod steering;
mod supervised;
