//! What is read of the metadata of objects.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The value of a label.
pub(crate) fn label<'m>(metadata: &'m ObjectMeta, name: &str) -> Option<&'m str> {
    metadata.labels.as_ref()?.get(name).map(String::as_str)
}

/// The value of an annotation.
pub(crate) fn annotation<'m>(metadata: &'m ObjectMeta, name: &str) -> Option<&'m str> {
    let annotations = metadata.annotations.as_ref()?;
    annotations.get(name).map(String::as_str)
}
