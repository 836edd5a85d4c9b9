// Package validation refuses what a real API server refuses of pods, services
// and a few other built-in types. The libraries hold no validation of built-in
// types, so these are checks of our own, with upstream's field paths and wording;
// they cover what an operator can put into a pod and what a user can put into
// a pod template.
package validation
