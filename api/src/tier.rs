//! How a pod restarts in place, depending on its node.

use std::fmt;
use std::str::FromStr;

/// The text is no restart tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidTier;

crate::worded! {
    /// Restart tier of a pod, stored in an annotation of the pod.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Tier {
        /// A supervisor restarts the training process inside its container, after all members of
        /// the domain have stopped. If the container ends, the node's own tier applies.
        Supervised = "supervised",
        /// A restart rule restarts all containers of the pod (KEP-5532).
        RestartAll = "restart-all",
        /// A restart rule restarts the training container (KEP-5307).
        RestartRules = "restart-rules",
        /// `restartPolicy: OnFailure`. The manager deletes the pod if the policy requires it.
        Plain = "plain",
    }
}

impl Tier {
    /// Rule action for exits of the training container. `None`: the kubelet follows
    /// `restartPolicy`.
    pub fn restart_action(self) -> Option<&'static str> {
        match self {
            Self::RestartAll => Some("RestartAllContainers"),
            Self::RestartRules => Some("Restart"),
            Self::Supervised | Self::Plain => None,
        }
    }

    /// True if the kubelet restarts all containers of the pod together.
    pub fn restarts_whole_pod(self) -> bool {
        match self {
            Self::RestartAll => true,
            Self::Supervised | Self::RestartRules | Self::Plain => false,
        }
    }

    /// True if the kubelet delays consecutive restarts. A restart of all containers removes its
    /// back-off, and restarts by a supervisor are invisible to the kubelet.
    pub fn kubelet_backs_off(self) -> bool {
        match self {
            Self::Supervised | Self::RestartAll => false,
            Self::RestartRules | Self::Plain => true,
        }
    }

    /// True if the pod waits until all members have stopped: attempts never overlap.
    pub fn has_barrier(self) -> bool {
        match self {
            Self::Supervised => true,
            Self::RestartAll | Self::RestartRules | Self::Plain => false,
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Tier {
    type Err = InvalidTier;

    fn from_str(text: &str) -> Result<Self, InvalidTier> {
        let tier = Self::ALL.into_iter().find(|t| t.as_str() == text);
        tier.ok_or(InvalidTier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_is_read_back_from_its_annotation() {
        for tier in Tier::ALL {
            assert_eq!(tier.to_string().parse(), Ok(tier));
        }
        let words = Tier::ALL.map(Tier::as_str);
        assert_eq!(
            words,
            ["supervised", "restart-all", "restart-rules", "plain"]
        );
        assert_eq!("other".parse::<Tier>(), Err(InvalidTier));
    }
}
