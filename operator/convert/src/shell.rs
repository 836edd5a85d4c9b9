//! Variables of a shell, as manifests for `envsubst` have them.

use serde_json::Value;

use crate::error::{ConvertError, Result};
use crate::field::{Path, PathStep};

/// Fields whose text a shell or a program may read in the container.
const READ_LATER: [&str; 4] = ["annotations", "args", "command", "env"];

/// Refuses variables where only the program that writes the manifest can replace them.
pub fn check(object: &Value) -> Result<()> {
    visit(object, &Path::default())
}

fn visit(value: &Value, path: &Path) -> Result<()> {
    match value {
        Value::Object(fields) => {
            let mut fields = fields
                .iter()
                .filter(|(key, _)| !READ_LATER.contains(&key.as_str()));
            fields.try_for_each(|(key, value)| visit(value, &path.then(PathStep::Key(key.clone()))))
        }
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.try_for_each(|(n, value)| visit(value, &path.then(PathStep::Index(n))))
        }
        Value::String(text) if has_variable(text) => Err(ConvertError::ShellVariable {
            path: path.to_string(),
            value: value.to_string(),
        }),
        _ => Ok(()),
    }
}

fn has_variable(text: &str) -> bool {
    let mut rests = text.split('$').skip(1);
    rests.any(|rest| rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '{'))
}
