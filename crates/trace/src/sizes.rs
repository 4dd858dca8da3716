//! Object sizes by rule, from a published size distribution, for workloads that record none.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

use crate::error::TraceError;
use crate::input::Input;
use pumice_world::mix64;

/// Largest file that is read, decompressed.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// A size distribution as CacheLib's CacheBench writes it (`sizes.json`): size `valSizeRange[i]` bytes with a
/// probability proportional to `valSizeRangeProbability[i]`.
///
/// The size of a key is fixed and independent of everything else: with `u = mix64(key) / 2^64`, it is the first size
/// whose cumulative weight exceeds `u × total`.
#[derive(Debug, Clone, PartialEq)]
pub struct SizeDistribution {
    sizes: Vec<u64>,
    cumulative: Vec<f64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SizesFile {
    val_size_range: Vec<f64>,
    val_size_range_probability: Vec<f64>,
}

impl SizeDistribution {
    /// Reads a distribution from a JSON file, plain or compressed.
    ///
    /// # Errors
    /// [`TraceError::Open`] and [`TraceError::Sizes`].
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let name = path.display().to_string();
        let open = |source| TraceError::Open {
            name: name.clone(),
            source,
        };
        let wrong = |what: String| TraceError::Sizes {
            name: name.clone(),
            what,
        };
        let file = File::open(path).map_err(open)?;
        let input = Input::new(file, 0).map_err(open)?;
        let mut text = Vec::new();
        input
            .bytes
            .take(MAX_FILE_BYTES)
            .read_to_end(&mut text)
            .map_err(|error| wrong(format!("cannot read: {error}")))?;
        Self::from_json(&text).map_err(wrong)
    }

    /// Parses a distribution; the error says what is wrong.
    fn from_json(text: &[u8]) -> Result<Self, String> {
        let file: SizesFile = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let (sizes, weights) = (file.val_size_range, file.val_size_range_probability);
        if sizes.len() != weights.len() {
            return Err(format!(
                "valSizeRange has {} entries and valSizeRangeProbability {}; they must be as many",
                sizes.len(),
                weights.len()
            ));
        }
        // Sizes stay exact as floats: larger ones than 2^53 are refused.
        if let Some(bad) = sizes
            .iter()
            .find(|size| !(0.0..=9_007_199_254_740_992.0).contains(*size))
        {
            return Err(format!("valSizeRange has {bad}, which is no size in bytes"));
        }
        if let Some(bad) = weights
            .iter()
            .find(|weight| !weight.is_finite() || **weight < 0.0)
        {
            return Err(format!("valSizeRangeProbability has {bad}, which is no weight"));
        }
        let mut total = 0.0;
        let cumulative: Vec<f64> = weights
            .iter()
            .map(|weight| {
                total += weight;
                total
            })
            .collect();
        if total <= 0.0 || !total.is_finite() {
            return Err("valSizeRangeProbability has no positive weight".into());
        }
        Ok(SizeDistribution {
            sizes: sizes.into_iter().map(|size| size as u64).collect(),
            cumulative,
        })
    }

    /// The size of a key's object in bytes. Cost: a binary search.
    pub fn size_of(&self, key: u64) -> u64 {
        let share = mix64(key) as f64 / 18_446_744_073_709_551_616.0;
        let point = share * self.cumulative.last().copied().unwrap_or(0.0);
        let index = self.cumulative.partition_point(|&cumulative| cumulative <= point);
        // Only rounding can lead past the end.
        self.sizes.get(index).or(self.sizes.last()).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_frequencies_of_the_file_and_depend_on_the_key_alone() {
        let text = br#"{"valSizeRange": [10, 20, 30], "valSizeRangeProbability": [1, 0, 3], "other": 1}"#;
        let sizes = SizeDistribution::from_json(text).unwrap();
        let drawn: Vec<u64> = (0..40_000).map(|key| sizes.size_of(key)).collect();
        let small = drawn.iter().filter(|&&size| size == 10).count();
        assert!((9_600..10_400).contains(&small), "{small}");
        assert!(!drawn.contains(&20));
        assert_eq!(drawn[17], sizes.size_of(17));
    }

    #[test]
    fn files_that_make_no_distribution_are_refused() {
        for (text, what) in [
            ("", "EOF"),
            ("{}", "valSizeRange"),
            (
                r#"{"valSizeRange": [1, 2], "valSizeRangeProbability": [1]}"#,
                "2 entries",
            ),
            (
                r#"{"valSizeRange": [], "valSizeRangeProbability": []}"#,
                "no positive weight",
            ),
            (
                r#"{"valSizeRange": [1], "valSizeRangeProbability": [0]}"#,
                "no positive weight",
            ),
            (r#"{"valSizeRange": [-1], "valSizeRangeProbability": [1]}"#, "-1"),
            (
                r#"{"valSizeRange": [1e300], "valSizeRangeProbability": [1]}"#,
                "no size",
            ),
            (
                r#"{"valSizeRange": [1], "valSizeRangeProbability": [-1]}"#,
                "no weight",
            ),
        ] {
            let found = SizeDistribution::from_json(text.as_bytes()).unwrap_err();
            assert!(found.contains(what), "{text}: {found}");
        }
    }
}
