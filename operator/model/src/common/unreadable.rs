//! Errors of objects that are rejected when they are read.

use thiserror::Error;

use crate::common::quantity::InvalidQuantity;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unreadable {
    /// A field is missing that the API server always sets.
    #[error("metadata.{0} is missing")]
    Missing(&'static str),
    /// A quantity that the API server would not have stored.
    #[error(transparent)]
    Quantity(#[from] InvalidQuantity),
}

/// Requires a non-empty identity.
pub fn present<'m>(
    field: &'static str,
    value: Option<&'m String>,
) -> Result<&'m String, Unreadable> {
    value
        .filter(|text| !text.is_empty())
        .ok_or(Unreadable::Missing(field))
}
