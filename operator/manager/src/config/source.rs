//! Source of the configuration: a file, merged over the defaults of the installation.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use serde_json::Value;

use super::{Config, ConfigError};

#[derive(Clone, Debug, Default)]
pub struct ConfigSource {
    /// The file. If `None`, only the defaults apply.
    pub file: Option<PathBuf>,
    /// Defaults of the installation, as YAML. If present, the file is optional.
    pub defaults: Option<String>,
}

impl ConfigSource {
    /// The file's content; empty if the file is missing and defaults exist.
    pub fn text(&self, read: io::Result<String>) -> io::Result<String> {
        match read {
            Err(error) if error.kind() == ErrorKind::NotFound && self.defaults.is_some() => {
                Ok(String::new())
            }
            read => read,
        }
    }

    pub fn parse(&self, text: &str) -> Result<Config, ConfigError> {
        // The text alone first, so that errors name its keys and values.
        let alone = Config::parse(text)?;
        let Some(defaults) = &self.defaults else {
            return Ok(alone);
        };
        Config::parse(defaults)?;
        let mut all = value(defaults)?;
        lockstep_api::merge_patch::apply(&mut all, value(text)?);
        Config::parse(&all.to_string())
    }
}

fn value(text: &str) -> Result<Value, ConfigError> {
    let nothing = || Value::Object(serde_json::Map::new());
    if text.trim().is_empty() {
        return Ok(nothing());
    }
    match serde_saphyr::from_str(text) {
        // The text contains only comments.
        Ok(Value::Null) => Ok(nothing()),
        read => read.map_err(|error| ConfigError::Syntax(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(defaults: &str) -> ConfigSource {
        ConfigSource {
            file: Some("config.yaml".into()),
            defaults: Some(defaults.to_owned()),
        }
    }

    #[test]
    fn what_the_file_says_goes_before_the_defaults_of_the_installation() {
        let source = over("{supervisor: {image: r/run:v2}, agents: {namespace: \"\"}}");
        let text = "agents: {labelValue: a}\nscheduler: {preemption: {enabled: false}}";
        let config = source.parse(text).unwrap();
        assert_eq!(config.supervisor.image, "r/run:v2");
        let agents = &config.agents;
        assert_eq!((&*agents.namespace, &*agents.label_value), ("", "a"));
        assert!(!config.scheduler.preemption.enabled);
        let own = source.parse("supervisor: {image: mine}").unwrap();
        assert_eq!(own.supervisor.image, "mine");
    }

    #[test]
    fn a_file_that_is_not_there_says_nothing_where_the_installation_has_defaults() {
        let absent = || Err(io::Error::from(ErrorKind::NotFound));
        assert_eq!(over("").text(absent()).unwrap(), "");
        assert_eq!(over("").parse("").unwrap(), Config::default());
        assert!(ConfigSource::default().text(absent()).is_err());
        let denied = Err(io::Error::from(ErrorKind::PermissionDenied));
        assert!(over("").text(denied).is_err());
    }

    #[test]
    fn a_file_of_comments_says_nothing() {
        let source = over("{supervisor: {image: r/run:v2}}");
        let config = source.parse("# agents:\n#   labelValue: a\n").unwrap();
        assert_eq!(config.supervisor.image, "r/run:v2");
    }

    #[test]
    fn a_key_that_does_not_exist_is_named_wherever_it_is() {
        for (defaults, text) in [("{news: 1}", ""), ("", "news: 1")] {
            let said = over(defaults).parse(text).unwrap_err().to_string();
            assert!(said.contains("news"), "{said}");
        }
    }
}
