//! Rules as the settings' file has them.

use http::header::{ACCEPT_LANGUAGE, HeaderName};
use pumice_door_http::rule_table::RuleTable;
use pumice_door_http::rules::{Override, Rules};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct File {
    http_rule: Vec<RuleTable>,
}

fn read(text: &str) -> Result<Rules, String> {
    let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
    Rules::of_tables(&file.http_rule).map_err(|error| error.to_string())
}

#[test]
fn tables_are_rules_with_every_key() {
    let rules = read(
        r#"
        [[http-rule]]
        path = "/static/*"
        fresh = 3600
        stale-while-revalidate = 60
        stale-if-error = 86400
        overrides = ["no-cache", "set-cookie"]
        query-keep = ["v", "w"]
        query-drop = ["w"]
        query-sort = true
        key-fields = ["Accept-Language", "x-device"]
        log-hide = ["token"]

        [[http-rule]]
        path = "*.css"
        log-hide = ["session", "id"]
        "#,
    )
    .unwrap();
    let rule = rules.find("/static/a.css");
    assert_eq!(rule.fresh_secs, Some(3600));
    assert_eq!(rule.stale_while_revalidate_secs, Some(60));
    assert_eq!(rule.stale_if_error_secs, Some(86400));
    assert_eq!(rule.overrides, [Override::NoCache, Override::SetCookie]);
    assert_eq!(
        rule.query.keep.as_deref(),
        Some(&["v".to_owned(), "w".to_owned()][..])
    );
    assert_eq!(rule.query.drop, ["w"]);
    assert!(rule.query.is_sorted);
    assert_eq!(
        rule.key_fields,
        [ACCEPT_LANGUAGE, HeaderName::from_static("x-device")]
    );
    let rule = rules.find("/a.css");
    assert_eq!((rule.fresh_secs, rule.query.keep.as_ref()), (None, None));
    assert!(rule.overrides.is_empty() && rule.key_fields.is_empty() && !rule.query.is_sorted);
    assert_eq!(rules.log_hide(), ["token", "session", "id"]);
    for (name, word) in Override::NAMES {
        assert_eq!(Override::named(name), Some(word));
    }
}

#[test]
fn what_is_no_rule_is_said_with_table_and_key() {
    for (keys, said) in [
        ("", "http-rule 2: path: it is missing"),
        (
            "path = 'a'",
            "http-rule 2: path: \"a\" begins neither with / nor with *",
        ),
        (
            "path = '/a?b'",
            "http-rule 2: path: \"/a?b\" has more than a path",
        ),
        (
            "path = '/a b'",
            "http-rule 2: path: \"/a b\" has letters that no path has",
        ),
        ("path = '/a//b'", "http-rule 2: path: \"/a//b\" has segments"),
        ("path = '/a%2Fb'", "http-rule 2: path: \"/a%2Fb\" has segments"),
        ("path = '/a/../b'", "http-rule 2: path: \"/a/../b\" has segments"),
        (
            "path = '/'\noverrides = ['no-stor']",
            "http-rule 2: overrides: \"no-stor\" is none of no-store, no-cache, private, max-age, s-maxage, expires, must-revalidate, \
             proxy-revalidate, set-cookie",
        ),
        (
            "path = '/'\nquery-keep = ['a=b']",
            "http-rule 2: query-keep: \"a=b\" is no name of a query's field",
        ),
        (
            "path = '/'\nquery-drop = ['']",
            "http-rule 2: query-drop: \"\" is no name of a query's field",
        ),
        (
            "path = '/'\nlog-hide = ['a&b']",
            "http-rule 2: log-hide: \"a&b\" is no name of a query's field",
        ),
        (
            "path = '/'\nkey-fields = ['a b']",
            "http-rule 2: key-fields: \"a b\" is no name of a field",
        ),
        // toml says these, with the line.
        ("path = '/'\nfresh = '1h'", "line 5, column 9"),
        ("path = '/'\nfresh = -1", "line 5, column 9"),
        ("path = '/'\nfreshness = 1", "unknown field `freshness`"),
        ("path = 7", "line 4, column 8"),
    ] {
        let text = format!("[[http-rule]]\npath = '/x'\n[[http-rule]]\n{keys}");
        let error = read(&text).err().unwrap();
        assert!(error.contains(said), "{error}");
    }
}
