//! Seeded synthetic workloads under the interface of a trace.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::TraceError;
use crate::fields::parse_u64;
use crate::random::{SplitMix64, mix64};
use crate::request::{BATCH_REQUESTS, Op, Progress, Request, RequestReader};
use crate::sizes::SizeDistribution;
use crate::zipf::Zipf;

/// A workload of independent draws, named by text such as `zipf:keys=1000000,theta=0.9,requests=10000000,seed=42`.
///
/// | part | value | default |
/// |------|-------|---------|
/// | `keys` | number of keys, 1 to 2^40 | required |
/// | `requests` | number of requests | required |
/// | `theta` | Zipf exponent, 0 to 20; `zipf` only, where it is required | |
/// | `seed` | any 64-bit number; fixes the sequence | 42 |
/// | `sizes` | a CacheLib size distribution file ([`SizeDistribution`]), whose path has no comma | no sizes |
/// | `size` | bytes of every object | no sizes |
///
/// `zipf` draws ranks by rejection-inversion ([`Zipf`]), `uniform` draws all keys alike. Rank k becomes the key
/// `mix64(k - 1 + mix64(seed))`, a bijection, so keys are spread over 64 bits. Every request is a get; its time is its
/// number, from 0.
#[derive(Debug, Clone)]
pub struct Generator {
    kind: &'static str,
    zipf: Zipf,
    requests: u64,
    seed: u64,
    sizes: Sizes,
}

#[derive(Debug, Clone)]
enum Sizes {
    None,
    Constant(u64),
    Drawn(Arc<SizeDistribution>),
}

impl Generator {
    /// Whether `name` is meant as a generator and not as a path.
    pub fn is_generator_name(name: &str) -> bool {
        name.starts_with("zipf:") || name.starts_with("uniform:")
    }

    /// The number of requests it yields.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Starts the sequence.
    pub fn open(&self) -> Box<dyn RequestReader> {
        let mut random = SplitMix64::new(self.seed);
        // The first number places the keys; the sequence of ranks starts after it.
        let key_base = random.next_u64();
        Box::new(GeneratedRequests {
            generator: self.clone(),
            random,
            key_base,
            done: 0,
        })
    }
}

impl FromStr for Generator {
    type Err = TraceError;

    /// # Errors
    /// [`TraceError::Generator`], naming the part that is wrong; the errors of [`SizeDistribution::open`].
    fn from_str(spec: &str) -> Result<Self, TraceError> {
        let wrong = |what: String| TraceError::Generator {
            spec: spec.to_owned(),
            what,
        };
        let (kind, parts) = match spec.split_once(':') {
            Some(("zipf", parts)) => ("zipf", parts),
            Some(("uniform", parts)) => ("uniform", parts),
            _ => return Err(wrong("expected `zipf:` or `uniform:`".into())),
        };
        let mut given = Parts::default();
        for part in parts.split(',') {
            given.take(kind, part).map_err(wrong)?;
        }
        let missing = |name: &str| wrong(format!("`{name}` is missing"));
        let keys = given.keys.ok_or_else(|| missing("keys"))?;
        let requests = given.requests.ok_or_else(|| missing("requests"))?;
        let theta = if kind == "uniform" {
            0.0
        } else {
            given.theta.ok_or_else(|| missing("theta"))?
        };
        let zipf = Zipf::new(keys, theta).ok_or_else(|| {
            wrong(format!(
                "keys are from 1 to {}, theta from 0 to {}",
                Zipf::MAX_RANKS,
                Zipf::MAX_THETA
            ))
        })?;
        let sizes = match (given.sizes, given.size) {
            (Some(_), Some(_)) => return Err(wrong("give `size` or `sizes`, not both".into())),
            (Some(path), None) => Sizes::Drawn(Arc::new(SizeDistribution::open(&path)?)),
            (None, Some(size)) => Sizes::Constant(size),
            (None, None) => Sizes::None,
        };
        Ok(Generator {
            kind,
            zipf,
            requests,
            seed: given.seed.unwrap_or(42),
            sizes,
        })
    }
}

/// The parts of a name as given.
#[derive(Default)]
struct Parts {
    keys: Option<u64>,
    requests: Option<u64>,
    theta: Option<f64>,
    seed: Option<u64>,
    size: Option<u64>,
    sizes: Option<PathBuf>,
}

impl Parts {
    fn take(&mut self, kind: &str, part: &str) -> Result<(), String> {
        let (name, value) = part.split_once('=').ok_or_else(|| {
            format!("expected parts such as `keys=1000` separated by commas, found `{part}`")
        })?;
        let number =
            || parse_u64(value.as_bytes()).ok_or_else(|| format!("`{name}={value}` is not a whole number"));
        let twice = match name {
            "keys" => self.keys.replace(number()?).is_some(),
            "requests" => self.requests.replace(number()?).is_some(),
            "seed" => self.seed.replace(number()?).is_some(),
            "size" => self.size.replace(number()?).is_some(),
            "sizes" => self.sizes.replace(PathBuf::from(value)).is_some(),
            "theta" if kind == "zipf" => {
                let theta = value
                    .parse()
                    .map_err(|_| format!("`theta={value}` is not a number"))?;
                self.theta.replace(theta).is_some()
            }
            _ => {
                let theta = if kind == "zipf" { "theta, " } else { "" };
                return Err(format!(
                    "unknown part `{name}` (parts: keys, {theta}requests, seed, size, sizes)"
                ));
            }
        };
        if twice {
            Err(format!("`{name}` is given twice"))
        } else {
            Ok(())
        }
    }
}

struct GeneratedRequests {
    generator: Generator,
    random: SplitMix64,
    key_base: u64,
    done: u64,
}

impl RequestReader for GeneratedRequests {
    fn next_batch(&mut self, out: &mut Vec<Request>) -> Result<bool, TraceError> {
        out.clear();
        let count = (self.generator.requests - self.done).min(BATCH_REQUESTS as u64);
        for _ in 0..count {
            let rank = self.generator.zipf.draw(&mut self.random);
            let key = mix64((rank - 1).wrapping_add(self.key_base));
            let size = match &self.generator.sizes {
                Sizes::None => None,
                Sizes::Constant(size) => Some(*size),
                Sizes::Drawn(distribution) => Some(distribution.size_of(key)),
            };
            out.push(Request {
                key,
                size,
                time: self.done,
                op: Op::Get,
            });
            self.done += 1;
        }
        Ok(count > 0)
    }

    fn has_sizes(&self) -> bool {
        !matches!(self.generator.sizes, Sizes::None)
    }

    fn format_name(&self) -> &'static str {
        self.generator.kind
    }

    fn progress(&self) -> Progress {
        Progress {
            done: self.done,
            total: self.generator.requests,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::io::Write;

    use super::*;
    use crate::testing::drain;

    fn generate(spec: &str) -> Vec<Request> {
        drain(&mut *spec.parse::<Generator>().unwrap().open()).unwrap()
    }

    #[test]
    fn a_seed_fixes_the_sequence_and_another_seed_changes_it() {
        let spec = "zipf:keys=1000,theta=0.9,requests=2000,seed=1";
        assert_eq!(generate(spec), generate(spec));
        assert_eq!(generate(spec).len(), 2000);
        assert_ne!(
            generate(spec),
            generate("zipf:keys=1000,theta=0.9,requests=2000,seed=2")
        );
        assert_eq!(
            generate("uniform:keys=9,requests=5"),
            generate("uniform:keys=9,requests=5,seed=42")
        );
        assert!(generate("uniform:keys=9,requests=0").is_empty());
    }

    #[test]
    fn popularity_follows_theta_and_keys_are_scrambled() {
        let mut counts: HashMap<u64, u32> = HashMap::new();
        for request in generate("zipf:keys=100,theta=1.1,requests=50000,seed=3") {
            *counts.entry(request.key).or_default() += 1;
        }
        assert_eq!(counts.len(), 100);
        let mut popular: Vec<(u32, u64)> = counts.into_iter().map(|(key, count)| (count, key)).collect();
        popular.sort_unstable_by(|a, b| b.cmp(a));
        let ratio = f64::from(popular[0].0) / f64::from(popular[1].0);
        assert!(
            (1.9..2.4).contains(&ratio),
            "2^1.1 = 2.14 expected, {ratio} found"
        );
        assert!(
            popular[0].1.abs_diff(popular[1].1) > 1 << 40,
            "neighbouring ranks have neighbouring keys"
        );
    }

    #[test]
    fn sizes_are_constant_or_drawn_for_each_key() {
        assert!(
            generate("uniform:keys=5,requests=50")
                .iter()
                .all(|request| request.size.is_none())
        );
        assert!(
            generate("uniform:keys=5,requests=50,size=7")
                .iter()
                .all(|request| request.size == Some(7))
        );
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(br#"{"valSizeRange": [1, 2], "valSizeRangeProbability": [1, 1]}"#)
            .unwrap();
        let drawn = generate(&format!(
            "uniform:keys=64,requests=5000,sizes={}",
            file.path().display()
        ));
        let mut sizes: HashMap<u64, u64> = HashMap::new();
        for request in drawn {
            let size = request.size.unwrap();
            assert_eq!(
                *sizes.entry(request.key).or_insert(size),
                size,
                "a key changed its size"
            );
        }
        assert!(sizes.values().any(|&size| size == 1) && sizes.values().any(|&size| size == 2));
    }

    #[test]
    fn what_is_wrong_with_a_name_is_named() {
        for (spec, what) in [
            ("zipf:", "found ``"),
            ("zipf:keys=10,requests=10", "`theta` is missing"),
            ("zipf:theta=1,requests=10", "`keys` is missing"),
            ("zipf:keys=10,theta=1", "`requests` is missing"),
            ("zipf:keys=0,theta=1,requests=1", "from 1 to"),
            ("zipf:keys=1,theta=-1,requests=1", "theta from 0 to 20"),
            ("zipf:keys=1,theta=nan,requests=1", "theta from 0 to 20"),
            ("zipf:keys=1,theta=x,requests=1", "`theta=x`"),
            ("zipf:keys=1e6,theta=1,requests=1", "`keys=1e6`"),
            ("zipf:keys=1,alpha=1,requests=1", "unknown part `alpha`"),
            ("uniform:keys=1,theta=1,requests=1", "unknown part `theta`"),
            ("uniform:keys=1,keys=2,requests=1", "given twice"),
            ("uniform:keys=1,requests=1,size=1,sizes=x", "not both"),
            ("uniform:keys=1,requests=1,sizes=/no/such/file", "/no/such/file"),
        ] {
            let message = spec.parse::<Generator>().unwrap_err().to_string();
            assert!(message.contains(what), "{spec}: {message}");
        }
    }
}
