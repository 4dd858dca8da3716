//! Fields of a JSON file by name, with errors that say which file and field is wrong.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::TraceError;
use crate::input::Input;

/// Largest file that is read, decompressed: a hundred times what published ones have.
const MAX_FILE_BYTES: u64 = 8 << 20;
/// What is added to the name of a file that stands there compressed.
const SUFFIXES: [&str; 3] = [".zst", ".gz", ".xz"];

/// A file as read.
pub(super) struct JsonFile {
    name: String,
    value: Value,
}

impl JsonFile {
    /// Reads a file, plain or compressed; one that is not there may be there with the suffix of a compression.
    pub(super) fn open(path: &Path) -> Result<Self, TraceError> {
        let (path, file) = open_or_compressed(path)?;
        let name = path.display().to_string();
        let open = |source| TraceError::Open {
            name: name.clone(),
            source,
        };
        let wrong = |what: String| TraceError::CacheBench {
            name: name.clone(),
            what,
        };
        let mut text = Vec::new();
        let input = Input::new(file, 0).map_err(open)?;
        let length = input.bytes.take(MAX_FILE_BYTES + 1).read_to_end(&mut text);
        match length {
            Err(error) => return Err(wrong(format!("cannot read: {error}"))),
            Ok(length) if length as u64 > MAX_FILE_BYTES => {
                return Err(wrong(format!("is larger than {} MiB", MAX_FILE_BYTES >> 20)));
            }
            Ok(_) => {}
        }
        let value = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        Ok(JsonFile { name, value })
    }

    /// The fields of the file's object.
    pub(super) fn fields(&self) -> Fields<'_> {
        Fields {
            file: &self.name,
            path: String::new(),
            value: &self.value,
        }
    }
}

fn open_or_compressed(path: &Path) -> Result<(PathBuf, File), TraceError> {
    let missing = match File::open(path) {
        Ok(file) => return Ok((path.to_owned(), file)),
        Err(error) => error,
    };
    if missing.kind() == io::ErrorKind::NotFound {
        for suffix in SUFFIXES {
            let mut compressed = path.as_os_str().to_owned();
            compressed.push(suffix);
            if let Ok(file) = File::open(&compressed) {
                return Ok((compressed.into(), file));
            }
        }
    }
    Err(TraceError::Open {
        name: path.display().to_string(),
        source: missing,
    })
}

/// The fields of an object in a file. A value that is not an object has none.
#[derive(Clone)]
pub(super) struct Fields<'a> {
    file: &'a str,
    /// Where in the file the object is: nothing, or names that end in a dot.
    path: String,
    value: &'a Value,
}

impl<'a> Fields<'a> {
    /// An error about a field.
    pub(super) fn wrong(&self, field: &str, what: impl std::fmt::Display) -> TraceError {
        TraceError::CacheBench {
            name: self.file.to_owned(),
            what: format!("{}{field}: {what}", self.path),
        }
    }

    pub(super) fn required<T>(&self, field: &str, value: Option<T>) -> Result<T, TraceError> {
        value.ok_or_else(|| self.wrong(field, "is missing"))
    }

    pub(super) fn object(&self, field: &str) -> Result<Option<Fields<'a>>, TraceError> {
        self.typed(field, "an object", |value| {
            value.is_object().then(|| Fields {
                file: self.file,
                path: format!("{}{field}.", self.path),
                value,
            })
        })
    }

    /// The objects of a list.
    pub(super) fn objects(&self, field: &str) -> Result<Option<Vec<Fields<'a>>>, TraceError> {
        self.typed(field, "a list of objects", |value| {
            let objects = value.as_array()?.iter().enumerate();
            let fields = objects.map(|(index, value)| {
                value.is_object().then(|| Fields {
                    file: self.file,
                    path: format!("{}{field}[{index}].", self.path),
                    value,
                })
            });
            fields.collect()
        })
    }

    pub(super) fn text(&self, field: &str) -> Result<Option<&'a str>, TraceError> {
        self.typed(field, "a text", Value::as_str)
    }

    pub(super) fn flag(&self, field: &str) -> Result<Option<bool>, TraceError> {
        self.typed(field, "true or false", Value::as_bool)
    }

    /// A weight; 0 if there is no such field.
    pub(super) fn weight(&self, field: &str) -> Result<f64, TraceError> {
        let weight = self.typed(field, "a number from 0 on", |value| {
            value.as_f64().filter(|&weight| is_weight(weight))
        })?;
        Ok(weight.unwrap_or(0.0))
    }

    /// A list of weights, not all 0.
    pub(super) fn weights(&self, field: &str) -> Result<Option<Vec<f64>>, TraceError> {
        let Some(weights) = self.numbers(field)? else {
            return Ok(None);
        };
        if let Some(index) = weights.iter().position(|&weight| !is_weight(weight)) {
            let what = format!("entry {index} is {}, which is no weight", weights[index]);
            return Err(self.wrong(field, what));
        }
        // The sum of nothing is -0.
        let total = 0.0 + weights.iter().sum::<f64>();
        if total <= 0.0 || !total.is_finite() {
            return Err(self.wrong(field, format!("the weights sum to {total}")));
        }
        Ok(Some(weights))
    }

    /// A whole number.
    pub(super) fn count(&self, field: &str) -> Result<Option<u64>, TraceError> {
        self.typed(field, "a whole number from 0 on", Value::as_u64)
    }

    /// A list of whole numbers.
    pub(super) fn counts(&self, field: &str) -> Result<Option<Vec<u64>>, TraceError> {
        self.typed(field, "a list of whole numbers from 0 on", |value| {
            value.as_array()?.iter().map(Value::as_u64).collect()
        })
    }

    /// A list of numbers.
    pub(super) fn numbers(&self, field: &str) -> Result<Option<Vec<f64>>, TraceError> {
        self.typed(field, "a list of numbers", |value| {
            value.as_array()?.iter().map(Value::as_f64).collect()
        })
    }

    /// A field that `convert` understands, which is called `expected` in messages.
    fn typed<T>(
        &self,
        field: &str,
        expected: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, TraceError> {
        let Some(value) = self.value.get(field) else {
            return Ok(None);
        };
        match convert(value) {
            Some(converted) => Ok(Some(converted)),
            None => Err(self.wrong(field, format!("expected {expected}"))),
        }
    }
}

fn is_weight(weight: f64) -> bool {
    weight.is_finite() && weight >= 0.0
}
