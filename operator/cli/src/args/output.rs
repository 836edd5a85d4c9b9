//! Formats of answers.

use clap::{Args as Group, ValueEnum};

/// Format of an answer about objects.
#[derive(Clone, Copy, Debug, Group)]
pub struct ObjectOutput {
    /// Format of the answer.
    #[arg(
        short = 'o',
        long = "output",
        value_name = "FORMAT",
        value_enum,
        default_value = "table"
    )]
    pub format: Format,
}

/// Formats of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// For people, with all columns.
    Wide,
    /// For programs.
    Json,
    /// For programs.
    Yaml,
    /// Names of the objects only, for scripts.
    Name,
}
