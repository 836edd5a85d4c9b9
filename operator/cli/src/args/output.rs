//! Formats of answers.

use clap::builder::{EnumValueParser, TypedValueParser};
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

/// Format of an answer about the installation.
#[derive(Clone, Copy, Debug, Group)]
pub struct ScreenOutput {
    /// Format of the answer.
    #[arg(
        short = 'o',
        long = "output",
        value_name = "FORMAT",
        default_value = "table",
        value_parser = EnumValueParser::<Format>::new().try_map(without_names)
    )]
    pub format: Format,
}

/// The answer has no names of objects.
fn without_names(format: Format) -> Result<Format, &'static str> {
    match format {
        Format::Name => {
            Err("this command returns no objects with names; use table, wide, json or yaml")
        }
        other => Ok(other),
    }
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
