//! Where a curve bends: sizes beyond which more is worth much less than it was up to there.

use crate::curve::Curve;

/// The curve is looked at in so many sizes for each doubling.
const STEPS: i32 = 8;
/// The smallest of them is so many halvings below the bytes of all objects.
const DOUBLINGS: i32 = 10;
/// Sizes of a curve are exact to a thousandth.
const CURVE_STEP: f64 = 1.001;
/// A knee is where a doubling brings so many hits less than the one before, and at most half as many.
const FALL_MIN: f64 = 0.05;

/// The knees of a curve: sizes in bytes, the smallest first, each with its hit ratio.
pub fn knees(curve: &Curve) -> Vec<(u64, f64)> {
    let footprint = curve.footprint as f64;
    let sizes: Vec<u64> = (-DOUBLINGS * STEPS..=0)
        .map(|step| (footprint * CURVE_STEP * 2f64.powf(f64::from(step) / f64::from(STEPS))).ceil() as u64)
        .collect();
    let falls: Vec<f64> = sizes.iter().map(|size| fall(curve, *size)).collect();
    let is_knee = |at: usize| {
        let around = at.saturating_sub(STEPS as usize)..(at + STEPS as usize + 1).min(falls.len());
        let before = &falls[around.start..at];
        falls[at] >= FALL_MIN
            && before.iter().all(|fall| *fall < falls[at])
            && falls[around].iter().all(|fall| *fall <= falls[at])
    };
    let found = (0..sizes.len()).filter(|at| is_knee(*at));
    found.map(|at| (sizes[at], curve.hit_ratio(sizes[at]))).collect()
}

/// How many hits fewer the next doubling of a size brings than the last has; 0 where they are more than half as many.
fn fall(curve: &Curve, size: u64) -> f64 {
    let [half, here, twice] = [size / 2, size, size.saturating_mul(2)].map(|size| curve.hit_ratio(size));
    let (before, after) = (here - half, twice - here);
    if after <= before / 2.0 {
        before - after
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::{CurveBuilder, CurveOptions};
    use pumice_trace::Request;

    const OBJECT_BYTES: u64 = 1_000;

    /// Sizes of the knees in objects, rounded up to a step.
    fn knees_of(keys: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut builder = CurveBuilder::new(CurveOptions {
            object_bytes: OBJECT_BYTES,
            ..CurveOptions::default()
        });
        for key in keys {
            builder.add(&[Request {
                key,
                ..Request::BLANK
            }]);
        }
        let found = knees(&builder.finish());
        found.iter().map(|(size, _)| size / OBJECT_BYTES).collect()
    }

    #[test]
    fn each_loop_has_a_knee_at_its_size() {
        let repeated = |times: u64, keys: std::ops::Range<u64>| (0..times).flat_map(move |_| keys.clone());
        let found = knees_of(repeated(20, 0..1_000));
        assert!(matches!(found[..], [1_000..=1_002]), "{found:?}");
        let found = knees_of(repeated(20, 0..1_000).chain(repeated(3, 1_000..11_000)));
        assert!(matches!(found[..], [1_000..=1_092, 10_000..=10_920]), "{found:?}");
        assert_eq!(knees_of(0..1_000), Vec::<u64>::new());
    }
}
