use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub(crate) fn label<'m>(metadata: &'m ObjectMeta, name: &str) -> Option<&'m str> {
    metadata.labels.as_ref()?.get(name).map(String::as_str)
}

pub(crate) fn annotation<'m>(metadata: &'m ObjectMeta, name: &str) -> Option<&'m str> {
    let annotations = metadata.annotations.as_ref()?;
    annotations.get(name).map(String::as_str)
}
