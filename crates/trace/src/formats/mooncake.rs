//! `mooncake`: requests to a language model, as lists of content-hashed prefix blocks.

use serde::Deserialize;

use crate::fields::Fault;
use crate::request::{BATCH_REQUESTS, Request};
use crate::text::LineParser;

/// One line; fields that are not needed are ignored.
#[derive(Deserialize, Default)]
struct Line {
    #[serde(default)]
    timestamp: f64,
    hash_ids: Vec<u64>,
}

/// JSON lines; every hash id of a line is one request at the line's time (milliseconds). No sizes: blocks are equal.
#[derive(Default)]
pub(crate) struct Mooncake {
    time: u64,
    /// Hash ids of the current line, the next one last; bounded by the longest line.
    pending: Vec<u64>,
}

impl LineParser for Mooncake {
    fn has_sizes(&self) -> bool {
        false
    }

    fn line(&mut self, line: &[u8], _out: &mut Vec<Request>) -> Result<(), Fault> {
        let mut parsed: Line = serde_json::from_slice(line).map_err(|error| Fault {
            at: error.column().saturating_sub(1),
            what: format!("expected a JSON object with `timestamp` and `hash_ids`: {error}"),
        })?;
        if parsed.timestamp < 0.0 {
            return Err(Fault {
                at: 0,
                what: format!("timestamp {} is negative", parsed.timestamp),
            });
        }
        self.time = parsed.timestamp as u64;
        parsed.hash_ids.reverse();
        self.pending = parsed.hash_ids;
        Ok(())
    }

    fn resume(&mut self, out: &mut Vec<Request>) {
        while out.len() < BATCH_REQUESTS {
            let Some(key) = self.pending.pop() else { return };
            out.push(Request {
                key,
                size: None,
                time: self.time,
                ..Request::BLANK
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{damage, request, requests};
    use crate::{Format, Op};

    #[test]
    fn every_hash_id_is_a_request_in_order() {
        let text = b"{\"timestamp\": 5, \"input_length\": 9, \"hash_ids\": [3, 1, 2]}\n\
                     {\"hash_ids\": [], \"timestamp\": 6}\n{\"timestamp\": 7.5, \"hash_ids\": [1]}";
        let get = |key, time| request(key, None, time, Op::Get);
        assert_eq!(
            requests(Format::Mooncake, text),
            [get(3, 5), get(1, 5), get(2, 5), get(1, 7)]
        );
    }

    #[test]
    fn a_line_with_more_ids_than_a_batch_loses_none() {
        let ids: Vec<String> = (0..2000).map(|id| id.to_string()).collect();
        let line = format!("{{\"timestamp\": 1, \"hash_ids\": [{}]}}\n", ids.join(","));
        let keys: Vec<u64> = requests(Format::Mooncake, line.as_bytes())
            .iter()
            .map(|r| r.key)
            .collect();
        assert_eq!(keys, (0..2000).collect::<Vec<u64>>());
    }

    #[test]
    fn damage_is_named_by_record_and_byte() {
        let good = "{\"timestamp\": 1, \"hash_ids\": [1]}\n";
        for (bad, what) in [
            ("{\"timestamp\": 1, \"hash_ids\": [1", "EOF"),
            ("{\"timestamp\": 1}\n", "hash_ids"),
            ("{\"timestamp\": -1, \"hash_ids\": []}\n", "negative"),
            ("{\"timestamp\": 1, \"hash_ids\": [-1]}\n", "-1"),
            ("[]]\n", "JSON"),
        ] {
            let (record, offset, found) = damage(Format::Mooncake, format!("{good}{bad}").as_bytes());
            assert_eq!(record, 2, "{bad}");
            assert!(
                offset >= good.len() as u64 && offset <= (good.len() + bad.len()) as u64,
                "{bad}: {offset}"
            );
            assert!(found.contains(what), "{bad}: {found}");
        }
    }
}
