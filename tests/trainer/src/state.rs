//! The trained state: integers, so that two runs over the same steps end with equal bits.

use anyhow::{Context, Result, ensure};

/// Number of parameters.
const WIDTH: usize = 64;

/// Steps and parameters, equal in all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub step: u64,
    parameters: Vec<u64>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            step: 0,
            parameters: vec![0; WIDTH],
        }
    }
}

impl State {
    /// Contribution of a rank to the next step: a function of rank and state, like a gradient.
    pub fn gradient(&self, rank: usize) -> impl Iterator<Item = u64> {
        // Knuth's multiplicative constant: spreads the bits.
        let seed = (rank as u64 + 1)
            .wrapping_mul(self.step + 1)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.parameters.iter().map(move |p| p.rotate_left(7) ^ seed)
    }

    /// Takes a step along the sum of all gradients.
    pub fn apply(&mut self, gradient: &[u64]) {
        for (parameter, change) in self.parameters.iter_mut().zip(gradient) {
            *parameter = parameter.wrapping_add(*change);
        }
        self.step += 1;
    }

    pub fn to_words(&self) -> Vec<u64> {
        std::iter::once(self.step)
            .chain(self.parameters.iter().copied())
            .collect()
    }

    pub fn from_words(words: &[u64]) -> Result<Self> {
        let (step, parameters) = words.split_first().context("no words")?;
        ensure!(
            parameters.len() == WIDTH,
            "{} parameters instead of {WIDTH}",
            parameters.len()
        );
        Ok(Self {
            step: *step,
            parameters: parameters.to_vec(),
        })
    }
}
