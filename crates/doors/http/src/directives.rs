//! Cache directives: `Cache-Control` of requests and responses, `Pragma` of requests, `CDN-Cache-Control` of responses.
//!
//! RFC 9111 leaves to a cache what it makes of a field with faults. Here the narrowest reading counts: of a number that stands there twice
//! the one that allows less, of a number that cannot be read 0, of a list of field names that cannot be read the whole response.

use crate::syntax::{Members, members, secs, unquote};
use http::header::{CACHE_CONTROL, HeaderMap, HeaderName, PRAGMA};
use sfv::{BareItem, Dictionary, ListEntry, Parser};

/// The targeted field that this cache obeys before `Cache-Control` and `Expires` (RFC 9213).
pub(crate) const CDN_CACHE_CONTROL: HeaderName = HeaderName::from_static("cdn-cache-control");

/// What `no-cache` or `private` is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// The directive is absent.
    #[default]
    Nothing,
    /// These fields of the response.
    Fields(Vec<HeaderName>),
    /// All of it.
    Whole,
}

impl Scope {
    /// Whether it is about the whole response.
    pub fn is_whole(&self) -> bool {
        *self == Self::Whole
    }

    /// The fields that it names.
    pub fn fields(&self) -> &[HeaderName] {
        match self {
            Self::Fields(names) => names,
            _ => &[],
        }
    }

    fn add(&mut self, argument: Argument<'_>) {
        let names = match argument {
            Argument::Text(text) | Argument::Quoted(text) => field_names(text),
            Argument::Absent | Argument::Number(_) => None,
        };
        *self = match (std::mem::take(self), names) {
            (Self::Whole, _) | (_, None) => Self::Whole,
            (Self::Nothing, Some(names)) => Self::Fields(names),
            (Self::Fields(mut all), Some(names)) => {
                all.extend(names);
                Self::Fields(all)
            }
        };
    }
}

/// The names in a list, if all are names of fields that a response can be without and still mean the same.
fn field_names(list: &[u8]) -> Option<Vec<HeaderName>> {
    let can_be_without = |name: &HeaderName| !name.as_str().starts_with("content-") && name != "vary";
    let names: Option<Vec<_>> = Members::of(list)
        .map(|name| HeaderName::from_bytes(name).ok().filter(can_be_without))
        .collect();
    names.filter(|names| !names.is_empty())
}

/// The directives of a request or a response; those that are not known are passed over. Numbers are seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the directives")]
pub struct Directives {
    pub max_age: Option<u32>,
    pub s_maxage: Option<u32>,
    pub stale_while_revalidate: Option<u32>,
    pub stale_if_error: Option<u32>,
    /// `u32::MAX` where the client takes a response of any age.
    pub max_stale: Option<u32>,
    pub min_fresh: Option<u32>,
    pub no_store: bool,
    pub no_cache: Scope,
    pub private: Scope,
    pub public: bool,
    pub must_revalidate: bool,
    pub proxy_revalidate: bool,
    pub must_understand: bool,
    pub immutable: bool,
    pub only_if_cached: bool,
    /// Whether they come from `CDN-Cache-Control`: then `Expires` says nothing.
    pub is_targeted: bool,
}

/// What follows a directive's name.
#[derive(Clone, Copy)]
enum Argument<'a> {
    Absent,
    /// A token or quoted string of `Cache-Control`, which may be a number.
    Text(&'a [u8]),
    /// A string of a structured field, which is no number.
    Quoted(&'a [u8]),
    /// An integer of a structured field; `None` for what no directive has.
    Number(Option<u32>),
}

impl Argument<'_> {
    /// As seconds; 0 where it cannot be read.
    fn secs(self) -> u32 {
        let number = match self {
            Self::Text(text) => secs(text),
            Self::Number(number) => number,
            Self::Absent | Self::Quoted(_) => None,
        };
        number.unwrap_or(0)
    }
}

impl Directives {
    /// Those of a request. `Pragma: no-cache` counts where there is no `Cache-Control` (RFC 9111, 5.4).
    pub fn of_request(fields: &HeaderMap) -> Self {
        let mut all = Self::of_cache_control(fields);
        if !fields.contains_key(CACHE_CONTROL)
            && members(fields, PRAGMA).any(|name| name.eq_ignore_ascii_case(b"no-cache"))
        {
            all.no_cache = Scope::Whole;
        }
        all
    }

    /// Those of a response: of `CDN-Cache-Control` if it is there, can be read and is not empty, else of `Cache-Control`.
    pub fn of_response(fields: &HeaderMap) -> Self {
        Self::of_targeted(fields).unwrap_or_else(|| Self::of_cache_control(fields))
    }

    fn of_cache_control(fields: &HeaderMap) -> Self {
        let mut all = Self::default();
        for member in members(fields, CACHE_CONTROL) {
            let mut halves = member.splitn(2, |&byte| byte == b'=');
            let name = halves.next().unwrap_or_default();
            let value = halves.next().map(unquote);
            let argument = match &value {
                None => Argument::Absent,
                // A blank before the sign: the directive is meant, its value is not readable.
                Some(_) if name.ends_with(b" ") || name.ends_with(b"\t") => Argument::Number(None),
                Some(value) => Argument::Text(value),
            };
            all.set(&name.trim_ascii_end().to_ascii_lowercase(), argument);
        }
        all
    }

    fn of_targeted(fields: &HeaderMap) -> Option<Self> {
        let lines: Vec<&[u8]> = fields
            .get_all(CDN_CACHE_CONTROL)
            .iter()
            .map(|line| line.as_bytes())
            .collect();
        let members: Dictionary = Parser::new(&lines.join(&b", "[..])).parse().ok()?;
        if members.is_empty() {
            return None;
        }
        let mut all = Self {
            is_targeted: true,
            ..Self::default()
        };
        for (name, value) in &members {
            let argument = match value {
                ListEntry::Item(item) => match &item.bare_item {
                    BareItem::Boolean(false) => continue,
                    BareItem::Boolean(true) => Argument::Absent,
                    BareItem::String(text) => Argument::Quoted(text.as_str().as_bytes()),
                    BareItem::Integer(number) => Argument::Number(secs(number.to_string().as_bytes())),
                    _ => Argument::Number(None),
                },
                ListEntry::InnerList(_) => Argument::Number(None),
            };
            all.set(name.as_str().as_bytes(), argument);
        }
        Some(all)
    }

    fn set(&mut self, name: &[u8], argument: Argument<'_>) {
        let least = |slot: &mut Option<u32>, secs: u32| *slot = Some(slot.map_or(secs, |old| old.min(secs)));
        match name {
            b"max-age" => least(&mut self.max_age, argument.secs()),
            b"s-maxage" => least(&mut self.s_maxage, argument.secs()),
            b"stale-while-revalidate" => least(&mut self.stale_while_revalidate, argument.secs()),
            b"stale-if-error" => least(&mut self.stale_if_error, argument.secs()),
            b"max-stale" => match argument {
                Argument::Absent => least(&mut self.max_stale, u32::MAX),
                _ => least(&mut self.max_stale, argument.secs()),
            },
            b"min-fresh" => self.min_fresh = self.min_fresh.max(Some(argument.secs())),
            b"no-store" => self.no_store = true,
            b"no-cache" => self.no_cache.add(argument),
            b"private" => self.private.add(argument),
            b"public" => self.public = true,
            b"must-revalidate" => self.must_revalidate = true,
            b"proxy-revalidate" => self.proxy_revalidate = true,
            b"must-understand" => self.must_understand = true,
            b"immutable" => self.immutable = true,
            b"only-if-cached" => self.only_if_cached = true,
            _ => {}
        }
    }
}
