//! Hostnames of members, as Lockstep will set them.

use serde_json::Value;

use crate::draft::{Draft, size, text};
use crate::error::Result;

/// Addresses of the members of a group, within the namespace.
pub fn hosts(draft: &Draft, group: &Value) -> Vec<String> {
    let (name, subdomain) = (draft.name(), draft.subdomain());
    let group_name = group["name"].as_str().unwrap_or_default();
    let mut out = Vec::new();
    for replica in 0..draft.replicas(group) {
        for index in 0..size(group) {
            out.push(format!("{name}-{group_name}-{replica}-{index}.{subdomain}"));
        }
    }
    out
}

/// Members of the origin whose hostnames end in a number, and their group.
pub struct Role {
    /// Hostname without the number.
    pub prefix: String,
    pub group: String,
    /// Replica of the member with number 0.
    pub first: i64,
}

/// The groups as roles of the same name.
pub fn roles(draft: &Draft) -> Vec<Role> {
    let names = draft
        .groups()
        .iter()
        .filter_map(|group| text(group, "name"));
    let role = |group: &str| Role {
        prefix: format!("{}-{group}-", draft.name()),
        group: group.to_owned(),
        first: 0,
    };
    names.map(role).collect()
}

/// Replaces the hostnames that the origin's controller gives to members by those of Lockstep, in
/// all strings of the templates. `short`: the names have a Service each, and need no domain.
pub fn rename(draft: &mut Draft, roles: &[Role], short: bool) -> Result<()> {
    let (name, subdomain) = (draft.name().to_owned(), draft.subdomain().to_owned());
    let mut renamed = false;
    for group in draft.groups_mut()? {
        for role in roles {
            let host = format!("{name}-{}-", role.group);
            let new = |text: &str| replace(text, role, &host, &subdomain, short);
            visit(&mut group["template"], &mut |text| {
                if let Some(new) = new(text) {
                    *text = new;
                    renamed = true;
                }
            });
        }
    }
    if renamed {
        let text =
            "those of members in the templates are renamed to `<job>-<group>-<n>-0.<subdomain>`.";
        draft.note("/spec/groups", "hostnames", text);
    }
    Ok(())
}

fn visit(value: &mut Value, change: &mut impl FnMut(&mut String)) {
    match value {
        Value::String(text) => change(text),
        Value::Array(items) => items.iter_mut().for_each(|item| visit(item, change)),
        Value::Object(fields) => fields.values_mut().for_each(|field| visit(field, change)),
        _ => {}
    }
}

/// A text with other hostnames; `None` if it has none.
fn replace(text: &str, role: &Role, host: &str, domain: &str, short: bool) -> Option<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    let (mut out, mut rest, mut renamed) = (String::new(), text, false);
    while let Some((before, after)) = rest.split_once(&role.prefix) {
        out.push_str(before);
        let (number, tail) = after.split_at(number_length(after));
        let full = tail.strip_prefix('.').and_then(|t| t.strip_prefix(domain));
        let full = full.is_some_and(|t| !t.starts_with(word));
        let is_path = out.ends_with('/') && !out.ends_with("//");
        let begins = !out.ends_with(|c| word(c) || c == '.');
        let ends = full || (short && !is_path && !tail.starts_with(word));
        let index = match number.parse::<i64>() {
            Ok(n) => Some((role.first + n).to_string()),
            Err(_) => Some(number.to_owned()).filter(|n| n.len() > 1 && role.first == 0),
        };
        if let Some(index) = index.filter(|_| begins && ends) {
            out.extend([host, &index, "-0"]);
            if !full {
                out.extend([".", domain]);
            }
            (rest, renamed) = (tail, true);
        } else {
            out.push_str(&role.prefix);
            rest = after;
        }
    }
    out.push_str(rest);
    renamed.then_some(out)
}

/// Length of the digits, or of the variable, that a text begins with.
fn number_length(text: &str) -> usize {
    let digits =
        |text: &str| text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let Some(variable) = text.strip_prefix('$') else {
        return digits(text);
    };
    let end = match variable.chars().next() {
        Some('{') => variable.find('}').map(|end| end + 1),
        Some('(') => variable.find(')').map(|end| end + 1),
        _ => variable.find(|c: char| !c.is_ascii_alphanumeric() && c != '_'),
    };
    1 + end.unwrap_or(variable.len())
}
