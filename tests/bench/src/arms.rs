//! Arms that leave out a method of the engine.

use anyhow::{Context, Result};
use lockstep_engine::Method;

/// Arms, and the methods that they leave out.
pub const ARMS: [(&str, Method); 12] = [
    ("no-relaxation", Method::Relaxation),
    ("no-claims", Method::Claims),
    ("no-multipliers", Method::Multipliers),
    ("no-penalties", Method::Penalties),
    ("no-exchanges", Method::Exchanges),
    ("no-pairs", Method::Pairs),
    ("no-worth", Method::Worth),
    ("no-at-once", Method::AtOnce),
    ("no-prices", Method::Prices),
    ("no-two-patterns", Method::TwoPatterns),
    ("no-replica-patterns", Method::ReplicaPatterns),
    ("no-divisions", Method::Divisions),
];

/// The method that an arm leaves out.
pub fn method_left_out(arm: &str) -> Result<Method> {
    let known = ARMS.iter().find(|(name, _)| *name == arm);
    let (_, method) = known.with_context(|| {
        let names: Vec<&str> = ARMS.iter().map(|(name, _)| *name).collect();
        format!(
            "arm {arm} is none of engine, kep, ratio, {}",
            names.join(", ")
        )
    })?;
    Ok(*method)
}
