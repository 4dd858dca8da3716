//! What a numbered content is: how far it compresses, and bytes that do.

use pumice_world::{Random, mix64};

/// Compression ratios are normally distributed, and clamped.
const RATIO_MEAN: f64 = 2.0;
const RATIO_DEVIATION: f64 = 0.5;
const RATIO_MAX: f64 = 8.0;
/// What does not become shorter by this part of a chunk is stored as it is, as `pumice_chunk::content` does.
const SAVED_MIN: u32 = 16;
/// LZ4 takes a byte for each so many of a literal, or of a run, and some for tokens, an offset and the end.
const LZ4_RUN: u32 = 255;
const LZ4_FIXED: u32 = 12;

/// The compression ratio of a content.
fn ratio(content: u64) -> f64 {
    let mut random = Random(mix64(content ^ 0x72a7_1000));
    // Box and Muller: 1 - u is above 0.
    let (u, v) = (1.0 - random.next_f64(), random.next_f64());
    let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
    (RATIO_MEAN + RATIO_DEVIATION * normal).clamp(1.0, RATIO_MAX)
}

/// Bytes of a content as a compressing cache stores it, without headers.
pub(super) fn stored_bytes(content: u64, chunk_bytes: u32) -> u32 {
    let wanted = (f64::from(chunk_bytes) / ratio(content)) as u32;
    if wanted > chunk_bytes - chunk_bytes.div_ceil(SAVED_MIN) {
        return chunk_bytes;
    }
    wanted
}

/// Makes `out` the bytes of a content: its number, then noise, then zeros, so that LZ4 leaves about [`stored_bytes`] of them.
pub(super) fn fill(content: u64, out: &mut [u8]) {
    let len = out.len() as u32;
    let noise = match stored_bytes(content, len) {
        stored if stored == len => len,
        stored => stored.saturating_sub(len / LZ4_RUN + LZ4_FIXED),
    };
    let (noise, rest) = out.split_at_mut(noise as usize);
    let mut random = Random(content);
    let (words, tail) = noise.as_chunks_mut::<8>();
    words
        .iter_mut()
        .for_each(|word| *word = random.next_u64().to_le_bytes());
    let last = random.next_u64().to_le_bytes();
    tail.iter_mut()
        .zip(last)
        .for_each(|(byte, random)| *byte = random);
    rest.fill(0);
    if let Some(first) = out.first_chunk_mut() {
        *first = content.to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_compress_as_far_as_the_content_says() {
        let (mut sum, mut scratch) = (0.0, Vec::new());
        for number in 0..300 {
            let content = mix64(number);
            for len in [4 << 10, 32 << 10] {
                let mut bytes = vec![1; len as usize];
                fill(content, &mut bytes);
                let (_, stored) = pumice_chunk::content::compress(&bytes, &mut scratch);
                let wanted = stored_bytes(content, len);
                let off = stored.len().abs_diff(wanted as usize);
                assert!(off <= 64, "{} of {len} instead of {wanted}", stored.len());
            }
            sum += ratio(content);
        }
        assert!((1.9..2.1).contains(&(sum / 300.0)), "{}", sum / 300.0);
    }
}
