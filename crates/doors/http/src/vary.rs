//! Variants of a URL: responses that `Vary` makes depend on fields of the request (RFC 9111, 4.1).
//!
//! Under the key of such a URL the engine has a list, [`Variants`], and each response under a key of its own: a digest of the URL, the
//! list's generation, the names that the response varies on, and what the request has for them. A list that is made anew has another
//! generation, so that no variant from before is found again: to invalidate a URL is to delete its list.
//!
//! | size | field      | meaning                                                           |
//! |-----:|------------|-------------------------------------------------------------------|
//! |    1 | `kind`     | [`LIST_KIND`]                                                     |
//! |    8 | `generation` | drawn at random when the list was made                          |
//! |    1 | `sets`     | sets of names, at most [`VARIANTS_MAX`]                           |
//! |    1 | `variants` | at most [`VARIANTS_MAX`]                                          |
//! |      | each set   | its length in bytes, 2; its names, in order, with commas between  |
//! |   17 | each variant, oldest first | number of its set, 1; its key, 16                 |

use crate::key::{EngineKey, Target, first_half};
use crate::syntax::{members, trim};
use http::header::{ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, HeaderMap, HeaderName, VARY};
use pumice_record::codec::Fields;

/// The first byte of a list of variants.
pub const LIST_KIND: u8 = 0x81;

/// The most variants of a URL; with one more the oldest goes.
pub const VARIANTS_MAX: usize = 64;

/// The most fields that a response may vary on.
pub const NAMES_MAX: usize = 16;

/// The longest names of a set together, with their commas.
const NAMES_BYTES_MAX: usize = 1 << 10;

/// What tells a variant from the others of its URL, and from those of other generations: a digest.
pub type VariantId = [u8; 32];

/// The key of the engine for a variant.
pub fn variant_key(id: &VariantId) -> EngineKey {
    first_half(id)
}

/// The fields that a response varies on and those that a rule adds: in order, none twice. `None` for `*`, for names that are none, and
/// for more than [`NAMES_MAX`].
pub(crate) fn selecting_names(response: &HeaderMap, added: &[HeaderName]) -> Option<Vec<HeaderName>> {
    let told = members(response, VARY).map(|name| match name {
        b"*" => None,
        name => HeaderName::from_bytes(name).ok(),
    });
    let mut names: Vec<_> = told
        .chain(added.iter().cloned().map(Some))
        .collect::<Option<_>>()?;
    names.sort_by(|one, other| one.as_str().cmp(other.as_str()));
    names.dedup();
    let bytes: usize = names.iter().map(|name| name.as_str().len() + 1).sum();
    (names.len() <= NAMES_MAX && bytes <= NAMES_BYTES_MAX).then_some(names)
}

/// The variants of a URL that are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variants {
    generation: u64,
    sets: Vec<Vec<HeaderName>>,
    /// Oldest first.
    variants: Vec<Variant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Variant {
    set: u8,
    key: EngineKey,
}

impl Variants {
    /// An empty list. The generation is a random number, which no list of this URL had before.
    pub fn new(generation: u64) -> Self {
        Self {
            generation,
            sets: Vec::new(),
            variants: Vec::new(),
        }
    }

    /// The list's generation. A response that was asked for under one generation must not be inserted into another.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The newest variant that fits a request.
    pub fn choose(&self, target: &Target, request: &HeaderMap) -> Option<VariantId> {
        let ids: Vec<_> = self
            .sets
            .iter()
            .map(|names| self.id(target, names, request))
            .collect();
        let fitting = |variant: &Variant| {
            ids.get(usize::from(variant.set))
                .filter(|id| variant_key(id) == variant.key)
        };
        self.variants.iter().rev().find_map(fitting).copied()
    }

    /// Which variant would fit a request, if its response varies on what the newest one does.
    pub fn likely(&self, target: &Target, request: &HeaderMap) -> Option<VariantId> {
        let names = self.sets.get(usize::from(self.variants.last()?.set))?;
        Some(self.id(target, names, request))
    }

    /// Adds the response to a request that varies on `names`, as the newest; the key of the one that has to go for it comes back.
    pub fn insert(
        &mut self,
        target: &Target,
        names: &[HeaderName],
        request: &HeaderMap,
    ) -> (VariantId, Option<EngineKey>) {
        let id = self.id(target, names, request);
        let key = variant_key(&id);
        self.variants.retain(|variant| variant.key != key);
        let gone = (self.variants.len() >= VARIANTS_MAX).then(|| self.variants.remove(0).key);
        self.drop_unused_sets();
        let set = self.sets.iter().position(|set| set == names).unwrap_or_else(|| {
            self.sets.push(names.to_vec());
            self.sets.len() - 1
        });
        let set = u8::try_from(set).expect("fewer sets than variants, which are few");
        self.variants.push(Variant { set, key });
        (id, gone)
    }

    fn drop_unused_sets(&mut self) {
        for set in (0..self.sets.len()).rev() {
            if self
                .variants
                .iter()
                .all(|variant| usize::from(variant.set) != set)
            {
                self.sets.remove(set);
                let moved = self
                    .variants
                    .iter_mut()
                    .filter(|variant| usize::from(variant.set) > set);
                moved.for_each(|variant| variant.set -= 1);
            }
        }
    }

    fn id(&self, target: &Target, names: &[HeaderName], request: &HeaderMap) -> VariantId {
        let mut hasher = blake3::Hasher::new();
        let mut add = |part: &[u8]| {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        };
        add(target.key().as_bytes());
        add(&self.generation.to_le_bytes());
        for name in names {
            add(name.as_str().as_bytes());
            // A field that is absent differs from one that is empty.
            match normal_form(name, request) {
                None => add(b"-"),
                Some(value) => {
                    add(b"+");
                    add(&value);
                }
            }
        }
        *hasher.finalize().as_bytes()
    }

    /// The bytes that [`decode`](Self::decode) reads.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![LIST_KIND];
        bytes.extend(self.generation.to_le_bytes());
        bytes.extend([self.sets.len() as u8, self.variants.len() as u8]);
        for names in &self.sets {
            let names: Vec<_> = names.iter().map(HeaderName::as_str).collect();
            let names = names.join(",");
            bytes.extend((names.len() as u16).to_le_bytes());
            bytes.extend(names.as_bytes());
        }
        for variant in &self.variants {
            bytes.push(variant.set);
            bytes.extend(variant.key);
        }
        bytes
    }

    /// What [`encode`](Self::encode) wrote; `None` for other bytes, which may be any.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Fields(bytes);
        let [LIST_KIND] = reader.array()? else {
            return None;
        };
        let generation = reader.u64()?;
        let [sets, variants] = reader.array()?.map(usize::from);
        if sets > VARIANTS_MAX || variants > VARIANTS_MAX {
            return None;
        }
        let mut list = Self::new(generation);
        for _ in 0..sets {
            let length = usize::from(reader.u16()?);
            let names = reader.bytes(length)?;
            // Of no bytes there is no name, and not one that is empty.
            let names = names.split(|&byte| byte == b',').take(length);
            let names: Result<Vec<_>, _> = names.map(HeaderName::from_lowercase).collect();
            list.sets
                .push(names.ok().filter(|names| names.len() <= NAMES_MAX)?);
        }
        for _ in 0..variants {
            let [set] = reader.array()?;
            let key = reader.array()?;
            if usize::from(set) >= sets {
                return None;
            }
            list.variants.push(Variant { set, key });
        }
        reader.0.is_empty().then_some(list)
    }
}

/// What counts of a request's field when variants are chosen; `None` where it is absent. Lines are combined. Of `Accept-Encoding` only
/// counts what it accepts; blanks and case of `Accept` and `Accept-Language` do not.
fn normal_form(name: &HeaderName, request: &HeaderMap) -> Option<Vec<u8>> {
    if !request.contains_key(name) {
        return None;
    }
    if name == ACCEPT_ENCODING {
        return Some(accepted_codings(request));
    }
    let lines: Vec<_> = request
        .get_all(name)
        .iter()
        .map(|line| trim(line.as_bytes()))
        .collect();
    let mut value = lines.join(&b", "[..]);
    if name == ACCEPT || name == ACCEPT_LANGUAGE {
        value.retain(|byte| !matches!(byte, b' ' | b'\t'));
        value.make_ascii_lowercase();
    }
    Some(value)
}

/// The codings that a request accepts, in order. Refusals are named where they say something: of `identity`, which is accepted
/// otherwise, and beside `*`.
fn accepted_codings(request: &HeaderMap) -> Vec<u8> {
    let mut codings: Vec<Vec<u8>> = Vec::new();
    let mut refused: Vec<Vec<u8>> = Vec::new();
    for member in members(request, ACCEPT_ENCODING) {
        let mut parts = member.split(|&byte| byte == b';').map(trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let name = name.strip_prefix(b"x-").map_or(name.clone(), <[u8]>::to_vec);
        match parts.any(is_zero_weight) {
            true => refused.push([&b"!"[..], &name].concat()),
            false if name == b"identity" => {}
            false => codings.push(name),
        }
    }
    let takes_any = codings.iter().any(|name| name == b"*");
    codings.extend(
        refused
            .into_iter()
            .filter(|name| takes_any || name == b"!identity" || name == b"!*"),
    );
    codings.sort();
    codings.dedup();
    codings.join(&b","[..])
}

/// Whether a parameter is a weight of 0.
fn is_zero_weight(parameter: &[u8]) -> bool {
    let mut halves = parameter.splitn(2, |&byte| byte == b'=').map(trim);
    let is_weight = halves.next().is_some_and(|name| name.eq_ignore_ascii_case(b"q"));
    let value = halves.next().unwrap_or_default();
    is_weight && value.starts_with(b"0") && value.iter().all(|byte| matches!(byte, b'0' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Query, Scheme};
    use http::HeaderValue;
    use proptest::prelude::*;

    fn target() -> Target {
        Target::new(Scheme::Http, "a", "/x", &Query::default()).unwrap()
    }

    fn request(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut fields = HeaderMap::new();
        for (name, value) in lines {
            fields.append(*name, HeaderValue::from_str(value).unwrap());
        }
        fields
    }

    #[test]
    fn accepted_codings_have_a_normal_form() {
        for (lines, expected) in [
            (&["gzip, br"][..], "br,gzip"),
            (&["br;q=0.5", "GZIP;Q=1.0"], "br,gzip"),
            (&["x-gzip;q=0.001 , identity"], "gzip"),
            (&["gzip;q=0, br; q=0.000"], ""),
            (&["br, gzip;q=0"], "br"),
            (&["*, gzip;q=0"], "!gzip,*"),
            (&["gzip, identity;q=0"], "!identity,gzip"),
            (&["gzip, *;q=0"], "!*,gzip"),
            (&[""], ""),
        ] {
            let lines: Vec<_> = lines.iter().map(|line| ("accept-encoding", *line)).collect();
            let form = normal_form(&ACCEPT_ENCODING, &request(&lines)).unwrap();
            assert_eq!(form, expected.as_bytes(), "{lines:?}");
        }
        assert_eq!(normal_form(&ACCEPT_ENCODING, &request(&[])), None);
    }

    #[test]
    fn the_request_at_hand_chooses() {
        let mut variants = Variants::new(1);
        let [encoding, language] = [ACCEPT_ENCODING, ACCEPT_LANGUAGE];
        let gzip = request(&[("accept-encoding", "gzip"), ("accept-language", "de")]);
        let brotli = request(&[("accept-encoding", "br"), ("accept-language", "de , en")]);
        let (for_gzip, _) = variants.insert(&target(), std::slice::from_ref(&encoding), &gzip);
        assert_eq!(variants.choose(&target(), &gzip), Some(for_gzip));
        assert_eq!(variants.choose(&target(), &brotli), None);
        assert_eq!(variants.choose(&target(), &request(&[])), None);
        // Both fit: the newer one is taken.
        let (for_german, _) = variants.insert(&target(), std::slice::from_ref(&language), &gzip);
        assert_eq!(variants.choose(&target(), &gzip), Some(for_german));
        let (again, _) = variants.insert(&target(), std::slice::from_ref(&encoding), &gzip);
        assert_eq!(
            (again, variants.choose(&target(), &gzip)),
            (for_gzip, Some(for_gzip))
        );
        assert_eq!(Variants::decode(&variants.encode()), Some(variants.clone()));
        // Another URL, another generation.
        let other = Target::new(Scheme::Http, "a", "/y", &Query::default()).unwrap();
        assert_eq!(variants.choose(&other, &gzip), None);
        let mut anew = Variants::new(2);
        let (id, _) = anew.insert(&target(), std::slice::from_ref(&encoding), &gzip);
        assert_ne!(id, for_gzip);
    }

    #[test]
    fn the_oldest_of_too_many_goes() {
        let mut variants = Variants::new(1);
        let user_agent = HeaderName::from_static("user-agent");
        let agent = |number: usize| request(&[("user-agent", &number.to_string())]);
        // A set of its own, which goes with its only variant.
        let (first, _) = variants.insert(&target(), &[ACCEPT], &agent(0));
        for number in 1..VARIANTS_MAX {
            assert_eq!(
                variants
                    .insert(&target(), std::slice::from_ref(&user_agent), &agent(number))
                    .1,
                None
            );
        }
        let gone = variants
            .insert(&target(), std::slice::from_ref(&user_agent), &agent(100))
            .1;
        assert_eq!(gone, Some(variant_key(&first)));
        assert_eq!(variants.sets, [vec![user_agent]]);
        assert!(variants.choose(&target(), &agent(1)).is_some());
        assert_eq!(variants.variants.len(), VARIANTS_MAX);
        assert_eq!(Variants::decode(&variants.encode()), Some(variants));
    }

    #[test]
    fn names_are_those_of_the_response_and_the_rule() {
        let names = |vary: &str, added: &[HeaderName]| selecting_names(&request(&[("vary", vary)]), added);
        assert_eq!(
            names("Origin,, accept-encoding", &[ACCEPT, ACCEPT_ENCODING]).unwrap(),
            [ACCEPT, ACCEPT_ENCODING, HeaderName::from_static("origin")]
        );
        for bad in ["*", "accept, *", "a b", &"x".repeat(NAMES_BYTES_MAX)] {
            assert_eq!(names(bad, &[]), None, "{bad}");
        }
        let many: Vec<_> = (0..=NAMES_MAX).map(|number| format!("x{number}")).collect();
        assert_eq!(names(&many.join(","), &[]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_list_or_none(bytes in any::<Vec<u8>>(), change in any::<prop::sample::Index>(), to in any::<u8>()) {
            Variants::decode(&bytes);
            let mut variants = Variants::new(7);
            variants.insert(&target(), &[ACCEPT, VARY], &request(&[("accept", "a")]));
            variants.insert(&target(), &[ACCEPT], &request(&[]));
            let mut encoded = variants.encode();
            let at = change.index(encoded.len());
            encoded[at] = to;
            if let Some(mut list) = Variants::decode(&encoded) {
                prop_assert_eq!(list.encode(), encoded);
                list.choose(&target(), &request(&[]));
                list.insert(&target(), &[ACCEPT_ENCODING], &request(&[]));
            }
        }
    }
}
