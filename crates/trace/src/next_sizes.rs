//! Sizes of requests that record none, in traces with sizes.

use crate::error::TraceError;
use crate::request::{
    BATCH_REQUESTS, Op, Progress, Records, Request, RequestReader, SIZE_REQUESTS, next_batch,
};
use std::collections::{HashMap, VecDeque};

/// Gives requests without a size the next that one of their key has, up to [`SIZE_REQUESTS`] requests on.
///
/// Memory: twice as many requests.
pub(crate) struct NextSizes {
    reader: Box<dyn RequestReader>,
    waiting: VecDeque<Request>,
    /// Of these, from the first on, so many have their size or have been looked at in vain.
    ready: usize,
    batch: Vec<Request>,
    /// How reading has ended; its error is passed on behind the last request.
    read_to: Option<Result<(), TraceError>>,
    without_size: u64,
    ended: bool,
}

impl NextSizes {
    pub(crate) fn new(reader: Box<dyn RequestReader>) -> Self {
        Self {
            reader,
            waiting: VecDeque::new(),
            ready: 0,
            batch: Vec::new(),
            read_to: None,
            without_size: 0,
            ended: false,
        }
    }

    fn read(&mut self, out: &mut Vec<Request>) -> Result<(), TraceError> {
        if self.ready == 0 {
            self.look_ahead();
        }
        let count = self.ready.min(BATCH_REQUESTS);
        out.extend(self.waiting.drain(..count));
        self.ready -= count;
        if out.is_empty() {
            self.ended = true;
            return self.read_to.take().unwrap_or(Ok(()));
        }
        Ok(())
    }

    /// Makes the next requests ready.
    fn look_ahead(&mut self) {
        while self.read_to.is_none() && self.waiting.len() < 2 * SIZE_REQUESTS {
            match self.reader.next_batch(&mut self.batch) {
                Ok(true) => {}
                Ok(false) => self.read_to = Some(Ok(())),
                Err(error) => self.read_to = Some(Err(error)),
            }
            let lacks_size = |request: &&Request| request.size.is_none() && request.op != Op::Delete;
            self.without_size += self.batch.iter().filter(lacks_size).count() as u64;
            self.waiting.extend(self.batch.drain(..));
        }
        self.ready = match self.read_to {
            Some(_) => self.waiting.len(),
            None => self.waiting.len().min(SIZE_REQUESTS),
        };
        let lacking = self.waiting.iter().take(self.ready);
        let mut next: HashMap<u64, Option<u64>> = lacking
            .filter(|request| request.size.is_none())
            .map(|request| (request.key, None))
            .collect();
        if next.is_empty() {
            return;
        }
        for request in self.waiting.iter_mut().rev() {
            if let Some(next) = next.get_mut(&request.key) {
                match request.size {
                    None => request.size = *next,
                    Some(_) if request.op == Op::Delete => {}
                    size => *next = size,
                }
            }
        }
    }
}

impl RequestReader for NextSizes {
    fn next_batch(&mut self, out: &mut Vec<Request>) -> Result<bool, TraceError> {
        next_batch(self, out, |reader| &mut reader.ended, Self::read)
    }

    fn has_sizes(&self) -> bool {
        self.reader.has_sizes()
    }

    fn format_name(&self) -> &'static str {
        self.reader.format_name()
    }

    fn records(&self) -> Records {
        Records {
            without_size: self.without_size,
            ..self.reader.records()
        }
    }

    fn progress(&self) -> Progress {
        self.reader.progress()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::drain;
    use crate::{Trace, TraceOptions};
    use std::io::Cursor;

    fn opened(text: String) -> Box<dyn RequestReader> {
        Trace::read_from("sample", Cursor::new(text), 0, &TraceOptions::default()).unwrap()
    }

    fn sizes(requests: &[Request]) -> Vec<(Option<u64>, bool)> {
        requests
            .iter()
            .map(|request| (request.size, request.is_miss))
            .collect()
    }

    #[test]
    fn what_records_no_size_has_the_next_of_its_key() {
        let text = "time,id,size,op\n1,7,,get\n1,8,0,get\n2,7,,delete\n3,7,50,set\n4,7,60,get\n5,7,,get\n6,9,,set\n7,9,5,delete\n";
        let mut reader = opened(text.to_owned());
        assert!(reader.has_sizes());
        let found = drain(&mut *reader).unwrap();
        let expected = [
            (Some(50), true),
            (None, true),
            (Some(50), false),
            (Some(50), false),
            (Some(60), false),
            (None, true),
            (None, false),
            (Some(5), false),
        ];
        assert_eq!(sizes(&found), expected);
        assert_eq!(reader.records().without_size, 4);
    }

    #[test]
    fn a_size_is_looked_for_so_many_requests_on_and_no_request_is_lost() {
        let others = |from: usize, count: usize| -> String {
            (from..from + count)
                .map(|key| format!("1,{key},9,get\n"))
                .collect()
        };
        for (between, size) in [
            (0, Some(50)),
            (SIZE_REQUESTS - 1, Some(50)),
            (3 * SIZE_REQUESTS, None),
        ] {
            let text = format!(
                "time,id,size,op\n1,1,,get\n{}1,1,50,set\n{}",
                others(2, between),
                others(2 + between, 3 * SIZE_REQUESTS)
            );
            let found = drain(&mut *opened(text)).unwrap();
            assert_eq!(found[0].size, size, "{between}");
            let keys: Vec<u64> = found.iter().map(|request| request.key).collect();
            let rest = 2 + between as u64..2 + (between + 3 * SIZE_REQUESTS) as u64;
            let expected: Vec<u64> = (1..2 + between as u64).chain([1]).chain(rest).collect();
            assert!(keys == expected, "{between}");
        }
    }

    #[test]
    fn damage_comes_behind_the_requests_before_it() {
        let mut reader = opened("time,id,size,op\n1,7,,get\n2,7,50,set\n3,7,x,get\n".to_owned());
        let mut batch = Vec::new();
        assert!(reader.next_batch(&mut batch).unwrap());
        assert_eq!(sizes(&batch), [(Some(50), true), (Some(50), false)]);
        let error = reader.next_batch(&mut batch).unwrap_err();
        assert!(error.is_corruption() && batch.is_empty(), "{error}");
        assert!(!reader.next_batch(&mut batch).unwrap());
    }
}
