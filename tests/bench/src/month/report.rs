//! Results of the arms, and their tables.

use std::collections::{BTreeMap, BTreeSet};

use super::{ACCELERATORS, Arm, Time};

/// Why a gang stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Its first start.
    Start,
    /// A failure.
    Failure,
    /// An announced maintenance.
    Maintenance,
    /// A gang of higher priority.
    Preemption,
    /// A false alarm.
    FalseAlarm,
}

impl Cause {
    const ALL: [Self; 5] = [
        Self::Failure,
        Self::Maintenance,
        Self::Preemption,
        Self::FalseAlarm,
        Self::Start,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Start => "first starts",
            Self::Failure => "failures",
            Self::Maintenance => "maintenance",
            Self::Preemption => "preemptions",
            Self::FalseAlarm => "false alarms",
        }
    }
}

/// Accelerator-seconds of gangs of one size, while they hold nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub held: Time,
    pub useful: Time,
    /// Regular saves.
    pub saves: Time,
    /// Work that was done again, saves on request, and time without steps before the stop.
    pub work: BTreeMap<Cause, Time>,
    /// From the stop to the first step.
    pub restarts: BTreeMap<Cause, Time>,
    pub interruptions: usize,
}

impl Spent {
    fn add(&mut self, other: &Self) {
        self.held += other.held;
        self.useful += other.useful;
        self.saves += other.saves;
        self.interruptions += other.interruptions;
        for (of, with) in [
            (&mut self.work, &other.work),
            (&mut self.restarts, &other.restarts),
        ] {
            for (cause, time) in with {
                *of.entry(*cause).or_default() += time;
            }
        }
    }
}

/// The result of an arm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// By number of members.
    pub(crate) sizes: BTreeMap<usize, Spent>,
    /// Moves by false alarms that stand.
    pub false_moves: usize,
    /// Moves by noise or by alarms shorter than their hold time.
    pub moves_by_noise: usize,
    /// Moves away from nodes with maintenance.
    pub moves: usize,
    /// Accelerator-seconds of reserved nodes before a gang stops.
    pub idle: Time,
}

impl Outcome {
    fn sum(&self, part: impl Fn(&Spent) -> Time) -> Time {
        self.sizes.values().map(part).sum()
    }

    /// Adds another month.
    pub fn add(&mut self, other: &Self) {
        for (size, spent) in &other.sizes {
            self.sizes.entry(*size).or_default().add(spent);
        }
        self.false_moves += other.false_moves;
        self.moves_by_noise += other.moves_by_noise;
        self.moves += other.moves;
        self.idle += other.idle;
    }

    /// Work that a cause has destroyed, with saves on request.
    pub fn work_lost(&self, cause: Cause) -> Time {
        self.sum(|s| s.work.get(&cause).copied().unwrap_or(0))
    }

    fn restarts(&self, cause: Cause) -> Time {
        self.sum(|s| s.restarts.get(&cause).copied().unwrap_or(0))
    }

    /// Time in which gangs held nodes.
    pub fn held(&self) -> Time {
        self.sum(|s| s.held)
    }

    /// Time of steps that count.
    pub fn useful(&self) -> Time {
        self.sum(|s| s.useful)
    }

    /// All other time in which gangs held nodes.
    pub fn lost(&self) -> Time {
        let of_causes = |s: &Spent| -> Time { s.work.values().chain(s.restarts.values()).sum() };
        self.sum(|s| s.saves + of_causes(s))
    }
}

/// Rows of tables with a column for each arm.
struct Table<'o> {
    outcomes: &'o [(Arm, Outcome)],
    /// Outcomes are sums of so many months.
    months: f64,
    lines: Vec<String>,
}

impl Table<'_> {
    fn head(&mut self, first: &str) {
        let names: Vec<&str> = self.outcomes.iter().map(|(arm, _)| arm.name()).collect();
        self.lines
            .push(format!("| {first} | {} |", names.join(" | ")));
        self.lines
            .push(format!("|---|{}", "---|".repeat(names.len())));
    }

    fn row(&mut self, name: &str, of: impl Fn(&Outcome) -> String) {
        let cells: Vec<String> = self.outcomes.iter().map(|(_, o)| of(o)).collect();
        self.lines
            .push(format!("| {name} | {} |", cells.join(" | ")));
    }

    fn number(&mut self, name: &str, of: impl Fn(&Outcome) -> f64) {
        let months = self.months;
        self.row(name, |o| format!("{:.0}", of(o) / months));
    }

    fn hours(&mut self, name: &str, of: impl Fn(&Outcome) -> Time) {
        self.number(name, |o| of(o) as f64 / 3600.0);
    }

    fn sizes(&mut self) {
        self.head("effective training time (interruptions) of gangs of");
        let months = self.months;
        let cell = |useful: Time, held: Time, interruptions: usize| {
            let share = 100.0 * useful as f64 / held.max(1) as f64;
            format!("{share:.1} % ({:.0})", interruptions as f64 / months)
        };
        let sizes = self.outcomes.iter().flat_map(|(_, o)| o.sizes.keys());
        let sizes: BTreeSet<usize> = sizes.copied().collect();
        for size in sizes {
            let name = format!("{} accelerators", size as i64 * ACCELERATORS);
            self.row(&name, |o| {
                let of = o.sizes.get(&size).cloned().unwrap_or_default();
                cell(of.useful, of.held, of.interruptions)
            });
        }
        self.row("all sizes", |o| {
            let interruptions = o.sizes.values().map(|s| s.interruptions).sum();
            cell(o.useful(), o.held(), interruptions)
        });
    }

    fn causes(&mut self) {
        self.head("accelerator-hours lost by");
        for cause in Cause::ALL {
            let name = cause.name();
            if cause != Cause::Start {
                self.hours(&format!("{name}: work"), |o| o.work_lost(cause));
            }
            self.hours(&format!("{name}: restarts"), |o| o.restarts(cause));
        }
        self.hours("regular saves", |o| o.sum(|s| s.saves));
    }

    fn aims(&mut self) {
        self.head("other figures");
        self.hours("accelerator-hours held by gangs", Outcome::held);
        self.hours("accelerator-hours idle before moves", |o| o.idle);
        self.number("moves by maintenance", |o| o.moves as f64);
        self.number("moves by standing false alarms", |o| o.false_moves as f64);
        self.number("moves by noise or short alarms", |o| {
            o.moves_by_noise as f64
        });
        let causes: [(&str, &[Cause]); 3] = [
            ("maintenance", &[Cause::Maintenance]),
            ("preemptions", &[Cause::Preemption]),
            ("both", &[Cause::Maintenance, Cause::Preemption]),
        ];
        for (name, causes) in causes {
            let lost = |o: &Outcome| -> Time { causes.iter().map(|c| o.work_lost(*c)).sum() };
            let base = self.outcomes.iter().find(|(arm, _)| *arm == Arm::InPlace);
            let base = base.map_or(1, |(_, o)| lost(o)).max(1) as f64;
            let ratio = |o: &Outcome| format!("{:.2}", lost(o) as f64 / base);
            self.row(&format!("work lost by {name}, to the arm in place"), ratio);
        }
    }
}

/// The tables of a setting, as means of so many months.
pub fn tables(outcomes: &[(Arm, Outcome)], months: u64) -> String {
    let mut table = Table {
        outcomes,
        months: months as f64,
        lines: Vec::new(),
    };
    table.sizes();
    table.lines.push(String::new());
    table.causes();
    table.lines.push(String::new());
    table.aims();
    table.lines.join("\n")
}
