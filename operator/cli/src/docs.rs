//! Addresses of the documentation.

/// Address of a page, with its anchor.
macro_rules! page {
    ($path:literal) => {
        concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/", $path)
    };
}
pub(crate) use page;

/// Address of the section about a reason of a workload.
pub fn of_reason(reason: &str) -> String {
    let conditions = page!("docs/reference/conditions.md");
    format!("{conditions}#{}", reason.to_lowercase())
}
