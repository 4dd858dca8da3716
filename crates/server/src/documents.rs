//! Tables of the documents that are made from the code.

use std::path::Path;

/// Compares a table of a page of docs/ with `made`, or writes it where the environment has WRITE_DOCS. It stands between the lines
/// `<!-- NAME: … -->` and `<!-- end of NAME -->`.
pub fn check(page: &str, name: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(page);
    let text = std::fs::read_to_string(&path).unwrap();
    let missing = || panic!("{page} has no place for the table {name}");
    let begin = text.find(&format!("<!-- {name}: ")).unwrap_or_else(missing);
    let begin = begin + text[begin..].find('\n').unwrap() + 1;
    let length = text[begin..]
        .find(&format!("<!-- end of {name} -->"))
        .unwrap_or_else(missing);
    let (head, rest) = text.split_at(begin);
    let (listed, tail) = rest.split_at(length);
    if std::env::var_os("WRITE_DOCS").is_some() {
        std::fs::write(path, format!("{head}{made}{tail}")).unwrap();
        return;
    }
    assert_eq!(
        listed, made,
        "`WRITE_DOCS=1 cargo test -p pumice-server -p pumice-cli --lib table` writes docs/{page} anew"
    );
}
