//! Rules as settings have them: tables `[[http-rule]]` of a file, read by serde.

use crate::key::Query;
use crate::rules::{Override, Rule, Rules, is_ambiguous};
use http::header::HeaderName;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A table `[[http-rule]]`. Times are in seconds; what each key means stands at [`Rule`] and [`Query`].
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
#[expect(missing_docs, reason = "as in `Rule`")]
pub struct RuleTable {
    pub path: String,
    pub fresh: Option<u32>,
    pub stale_while_revalidate: Option<u32>,
    pub stale_if_error: Option<u32>,
    pub overrides: Vec<String>,
    pub query_keep: Option<Vec<String>>,
    pub query_drop: Vec<String>,
    pub query_sort: bool,
    pub key_fields: Vec<String>,
    pub log_hide: Vec<String>,
}

/// A table that is no rule.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("http-rule {number}: {key}: {what}")]
pub struct BadRule {
    /// The table's, counted from 1.
    number: usize,
    key: &'static str,
    what: String,
}

impl Rules {
    /// The rules that tables are, in their order.
    ///
    /// # Errors
    ///
    /// The first table and key that cannot be read.
    pub fn of_tables(tables: &[RuleTable]) -> Result<Self, BadRule> {
        let rule = |(at, table): (usize, &RuleTable)| {
            table.rule().map_err(|(key, what)| BadRule {
                number: at + 1,
                key,
                what,
            })
        };
        let rules = tables.iter().enumerate().map(rule).collect::<Result<_, _>>()?;
        Ok(Self::new(rules))
    }
}

impl RuleTable {
    fn rule(&self) -> Result<Rule, (&'static str, String)> {
        let overrides = self.overrides.iter().map(|name| {
            Override::named(name).ok_or_else(|| {
                let names: Vec<_> = Override::NAMES.iter().map(|(name, _)| *name).collect();
                ("overrides", format!("{name:?} is none of {}", names.join(", ")))
            })
        });
        let key_fields = self.key_fields.iter().map(|name| {
            let parsed = HeaderName::from_bytes(name.as_bytes());
            parsed.map_err(|_| ("key-fields", format!("{name:?} is no name of a field")))
        });
        Ok(Rule {
            path: self.path()?,
            fresh_secs: self.fresh,
            stale_while_revalidate_secs: self.stale_while_revalidate,
            stale_if_error_secs: self.stale_if_error,
            overrides: overrides.collect::<Result<_, _>>()?,
            query: Query {
                keep: match &self.query_keep {
                    Some(keep) => Some(query_names("query-keep", keep)?),
                    None => None,
                },
                drop: query_names("query-drop", &self.query_drop)?,
                is_sorted: self.query_sort,
            },
            key_fields: key_fields.collect::<Result<_, _>>()?,
            log_hide: query_names("log-hide", &self.log_hide)?,
        })
    }

    /// A pattern that some path can fit.
    fn path(&self) -> Result<String, (&'static str, String)> {
        let path = &self.path;
        let what = match () {
            () if path.is_empty() => "it is missing".to_owned(),
            () if !path.starts_with(['/', '*']) => format!("{path:?} begins neither with / nor with *"),
            () if path.contains(['?', '#']) => format!("{path:?} has more than a path"),
            () if path.contains(|letter: char| letter.is_control() || letter == ' ') => {
                format!("{path:?} has letters that no path has")
            }
            () if is_ambiguous(path) => {
                format!("{path:?} has segments or coded letters for which a path has no rule")
            }
            () => return Ok(path.clone()),
        };
        Err(("path", what))
    }
}

/// Names as they stand in queries.
fn query_names(key: &'static str, names: &[String]) -> Result<Vec<String>, (&'static str, String)> {
    match names
        .iter()
        .find(|name| name.is_empty() || name.contains(['&', '=', '#']))
    {
        Some(name) => Err((key, format!("{name:?} is no name of a query's field"))),
        None => Ok(names.to_vec()),
    }
}
