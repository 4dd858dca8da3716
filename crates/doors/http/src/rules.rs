//! Rules by path: what the operator says about caching where the origin says nothing, and which of its words he passes over.

use crate::directives::{Directives, Scope};
use crate::key::Query;
use http::header::HeaderName;

/// A rule for the paths that fit a pattern.
#[derive(Clone, Debug, Default)]
pub struct Rule {
    /// Paths, without their query: `*` stands for any bytes, everything else for itself.
    pub path: String,
    /// Freshness of responses to which the origin gives none, in seconds. Only for statuses that a cache may give a lifetime by itself
    /// (RFC 9111, 4.2.2). Default: none.
    pub fresh_secs: Option<u32>,
    /// As `stale-while-revalidate`, where the origin does not say it. Default: none.
    pub stale_while_revalidate_secs: Option<u32>,
    /// As `stale-if-error`, where the origin does not say it. Default: none.
    pub stale_if_error_secs: Option<u32>,
    /// What the origin says in vain. Default: nothing.
    pub overrides: Vec<Override>,
    /// What becomes of the query.
    pub query: Query,
    /// Fields of the request that choose among responses, as if each response named them in `Vary`.
    pub key_fields: Vec<HeaderName>,
    /// Fields of queries whose values are not written to the access log, whatever the path: a `Referer` has them, too.
    pub log_hide: Vec<String>,
}

/// A word of the origin's that a rule passes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of directives and fields")]
pub enum Override {
    NoStore,
    NoCache,
    Private,
    MaxAge,
    SMaxage,
    Expires,
    MustRevalidate,
    /// What `s-maxage` says of stale responses, too.
    ProxyRevalidate,
    /// A response with it is stored, without it.
    SetCookie,
}

impl Override {
    /// All, by the names that settings have for them.
    pub const NAMES: [(&'static str, Self); 9] = [
        ("no-store", Self::NoStore),
        ("no-cache", Self::NoCache),
        ("private", Self::Private),
        ("max-age", Self::MaxAge),
        ("s-maxage", Self::SMaxage),
        ("expires", Self::Expires),
        ("must-revalidate", Self::MustRevalidate),
        ("proxy-revalidate", Self::ProxyRevalidate),
        ("set-cookie", Self::SetCookie),
    ];

    /// The override of that name.
    pub fn named(name: &str) -> Option<Self> {
        let named = Self::NAMES.iter().find(|(other, _)| *other == name);
        named.map(|(_, word)| *word)
    }
}

impl Rule {
    /// Whether it passes over that word.
    pub fn overrides(&self, word: Override) -> bool {
        self.overrides.contains(&word)
    }

    /// Takes from a response's directives what the rule passes over.
    pub(crate) fn apply(&self, directives: &mut Directives) {
        for word in &self.overrides {
            match word {
                Override::NoStore => directives.no_store = false,
                Override::NoCache => directives.no_cache = Scope::Nothing,
                Override::Private => directives.private = Scope::Nothing,
                Override::MaxAge => directives.max_age = None,
                Override::SMaxage => directives.s_maxage = None,
                Override::MustRevalidate => directives.must_revalidate = false,
                Override::ProxyRevalidate => directives.proxy_revalidate = false,
                Override::Expires | Override::SetCookie => {}
            }
        }
    }
}

/// All rules; of those that fit a path the first counts.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
    none: Rule,
}

impl Rules {
    /// In the order of the settings.
    pub fn new(rules: Vec<Rule>) -> Self {
        Self {
            rules,
            none: Rule::default(),
        }
    }

    /// The fields of queries that the access log must not have.
    pub fn log_hide(&self) -> Vec<String> {
        self.rules
            .iter()
            .flat_map(|rule| &rule.log_hide)
            .cloned()
            .collect()
    }

    /// The rule for a path, without its query; one that says nothing where none fits. A path that an origin could take for another one has
    /// no rule: one with dot segments, empty segments, backslashes, or coded dots, slashes, backslashes or percent signs.
    /// `/static/..%2faccount` is not what `/static/*` was written for.
    pub fn find(&self, path: &str) -> &Rule {
        if self.rules.is_empty() || is_ambiguous(path) {
            return &self.none;
        }
        let fitting = |rule: &&Rule| fits(rule.path.as_bytes(), path.as_bytes());
        self.rules.iter().find(fitting).unwrap_or(&self.none)
    }
}

/// Whether an origin could take it for another path.
pub(crate) fn is_ambiguous(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    ["%2e", "%2f", "%5c", "%25", "\\", "//"]
        .iter()
        .any(|part| path.contains(part))
        || path.split('/').any(|segment| segment == "." || segment == "..")
}

/// Whether a path fits a pattern; at most as many steps as the product of their lengths.
fn fits(pattern: &[u8], path: &[u8]) -> bool {
    let (mut at, mut seen) = (0, 0);
    // Behind the last star, and how much of the path that star has.
    let mut star: Option<(usize, usize)> = None;
    while seen < path.len() {
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            star = Some((at, seen));
        } else if pattern.get(at) == Some(&path[seen]) {
            at += 1;
            seen += 1;
        } else if let Some((behind, end)) = star {
            star = Some((behind, end + 1));
            at = behind;
            seen = end + 1;
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_fits_counts() {
        let rule = |path: &str, fresh_secs| Rule {
            path: path.to_owned(),
            fresh_secs: Some(fresh_secs),
            ..Rule::default()
        };
        let rules = Rules::new(vec![
            rule("/static/*", 1),
            rule("*.css", 2),
            rule("/a/*/b*c", 3),
            rule("/", 4),
        ]);
        for (path, fresh) in [
            ("/static/x.css", Some(1)),
            ("/x.css", Some(2)),
            ("/x.css/y", None),
            ("/a/1/2/bxcxc", Some(3)),
            ("/a/1/2/bxcxd", None),
            ("/", Some(4)),
            ("", None),
            ("/static", None),
            ("/static/../account", None),
            ("/static/%2E%2e/account", None),
            ("/static/..%2Faccount", None),
            ("/static/..%5caccount", None),
            ("/static//account", None),
            ("/static/%252e%252e/account", None),
            ("/static/...", Some(1)),
        ] {
            assert_eq!(rules.find(path).fresh_secs, fresh, "{path}");
        }
    }
}
