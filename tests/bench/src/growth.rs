//! Growth of a cost: `cost = a * size^b`, fitted by least squares of the logarithms.

/// A fitted power law.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// The exponent `b`: 1 is proportional, 0 is constant.
    pub exponent: f64,
    /// Largest deviation from the law, as a factor: 1 is exact.
    pub worst: f64,
}

/// Fits a power law to sizes and costs, both above zero, of at least two different sizes.
pub fn fit(points: &[(f64, f64)]) -> Fit {
    let logs: Vec<(f64, f64)> = points
        .iter()
        .map(|&(size, cost)| (size.ln(), cost.ln()))
        .collect();
    let count = logs.len() as f64;
    let mean_size = logs.iter().map(|p| p.0).sum::<f64>() / count;
    let mean_cost = logs.iter().map(|p| p.1).sum::<f64>() / count;
    let together: f64 = logs
        .iter()
        .map(|p| (p.0 - mean_size) * (p.1 - mean_cost))
        .sum();
    let spread: f64 = logs.iter().map(|p| (p.0 - mean_size).powi(2)).sum();
    let exponent = together / spread;
    let off = |&(size, cost): &(f64, f64)| (cost - mean_cost - exponent * (size - mean_size)).abs();
    Fit {
        exponent,
        worst: logs.iter().map(off).fold(0.0, f64::max).exp(),
    }
}

#[cfg(test)]
mod tests {
    use super::fit;

    #[test]
    fn a_power_law_is_found_and_deviations_are_reported() {
        let square = fit(&[(1.0, 5.0), (10.0, 500.0), (100.0, 50_000.0)]);
        assert!(
            (square.exponent - 2.0).abs() < 1e-9 && (square.worst - 1.0).abs() < 1e-9,
            "{square:?}"
        );
        let bent = fit(&[(1.0, 1.0), (10.0, 4.0), (100.0, 1.0)]);
        assert!(bent.exponent.abs() < 1e-9 && bent.worst > 2.0, "{bent:?}");
    }
}
