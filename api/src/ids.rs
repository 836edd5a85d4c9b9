//! Identities as types. They are parsed once from metadata and are never empty afterwards.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::names::{WHOLE, replica_key};

/// The identity is an empty string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("an identity must not be empty")]
pub struct EmptyIdentity;

macro_rules! identity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Returns the identity, or `None` if the metadata lacks it.
            pub fn read(text: Option<&str>) -> Option<Self> {
                text.and_then(|t| t.parse().ok())
            }

            /// The identity as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = EmptyIdentity;

            fn from_str(text: &str) -> Result<Self, EmptyIdentity> {
                if text.is_empty() {
                    return Err(EmptyIdentity);
                }
                Ok(Self(text.into()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = EmptyIdentity;

            fn try_from(text: String) -> Result<Self, EmptyIdentity> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(identity: $name) -> Self {
                identity.0.as_ref().into()
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                *self.0 == *other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                *self.0 == **other
            }
        }
    };
}

identity! {
    /// `metadata.uid` of an object, the only proof of ownership.
    Uid
}
identity! {
    /// Key of a gang within its workload: `workload`, a group's name, or `<group>.<replica>`.
    GangKey
}
identity! {
    /// Key of a restart domain within its workload: a gang key, or `<group>.<replica>`.
    DomainKey
}
identity! {
    /// Name of a node.
    NodeName
}
identity! {
    /// `metadata.resourceVersion`. Only equality is meaningful, not order.
    ResourceVersion
}

impl GangKey {
    /// Key of the gang with all members.
    pub fn whole() -> Self {
        Self(WHOLE.into())
    }

    /// Key of the gang of a replica.
    pub fn of_replica(group: &str, replica: i32) -> Self {
        Self(replica_key(group, replica).into())
    }
}

impl DomainKey {
    /// Key of the restart domain of a replica.
    pub fn of_replica(group: &str, replica: i32) -> Self {
        Self(replica_key(group, replica).into())
    }
}

/// The only restart domain of a gang that restarts as a whole.
impl From<&GangKey> for DomainKey {
    fn from(gang: &GangKey) -> Self {
        Self(Arc::clone(&gang.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_that_is_missing_or_empty_is_none_and_no_empty_text() {
        assert_eq!((Uid::read(None), Uid::read(Some(""))), (None, None));
        assert!(serde_json::from_str::<Uid>("\"\"").is_err());
        let uid: Uid = serde_json::from_str("\"4f2a\"").unwrap();
        assert_eq!(
            (uid.as_str(), serde_json::to_string(&uid).unwrap()),
            ("4f2a", "\"4f2a\"".into())
        );
    }
}
