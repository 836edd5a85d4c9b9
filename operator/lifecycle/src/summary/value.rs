pub(super) struct ConditionValue {
    pub status: bool,
    pub reason: String,
    pub message: String,
}

pub(super) fn condition(status: bool, reason: &str, message: impl Into<String>) -> ConditionValue {
    ConditionValue {
        status,
        reason: reason.into(),
        message: message.into(),
    }
}
