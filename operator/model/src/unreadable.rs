//! Objects that are refused at the border.

use thiserror::Error;

use crate::quantity::InvalidQuantity;

/// Why an object cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unreadable {
    /// The API server gives every object this field.
    #[error("metadata.{0} is missing")]
    Missing(&'static str),
    /// A quantity that the API server would not have stored.
    #[error(transparent)]
    Quantity(#[from] InvalidQuantity),
}

/// Checks that an identity is there.
pub fn present<'m>(
    field: &'static str,
    value: Option<&'m String>,
) -> Result<&'m String, Unreadable> {
    value
        .filter(|text| !text.is_empty())
        .ok_or(Unreadable::Missing(field))
}
