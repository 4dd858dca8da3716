//! `mqsim`: traces of the SSD simulator MQSim.

use super::pages::{Extent, Pages};
use crate::fields::{Fault, Fields, parse_u64};
use crate::request::{DiskRequests, Op, Request};
use crate::text::LineParser;

/// `time device sector sectors type`, blank separated: nanoseconds, sectors of 512 bytes, 0 write or 1 read. The device makes
/// addresses distinct.
#[derive(Default)]
pub(crate) struct Mqsim {
    pages: Pages,
}

/// Whether a line is a record of this format.
pub(crate) fn shows(line: &[u8]) -> bool {
    let mut fields = Fields::blanks(line);
    let numbers = (0..4).all(|_| {
        fields
            .next("number")
            .is_some_and(|field| parse_u64(field.bytes).is_some())
    });
    let kind = fields.next("type").map(|field| field.bytes);
    numbers && matches!(kind, Some(b"0" | b"1")) && fields.next("rest").is_none()
}

impl LineParser for Mqsim {
    fn has_ops(&self) -> bool {
        true
    }

    fn disk_requests(&self) -> Option<DiskRequests> {
        Some(self.pages.counts())
    }

    fn line(&mut self, line: &[u8], _out: &mut Vec<Request>) -> Result<(), Fault> {
        let mut fields = Fields::blanks(line);
        let time = fields.required("time")?.unsigned()?;
        let extent = Extent {
            device: Some(fields.required("device")?),
            sector: fields.required("sector")?,
            sectors: fields.required("sectors")?,
        };
        let kind = fields.required("type")?;
        let op = match kind.bytes {
            b"0" => Op::Set,
            b"1" => Op::Get,
            _ => return Err(kind.fault("0 (write) or 1 (read)")),
        };
        fields.finish()?;
        extent.split(&mut self.pages, time, op, None, &[])
    }

    fn resume(&mut self, out: &mut Vec<Request>) {
        self.pages.resume(out);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{damage, request, requests};
    use crate::{Format, Op};

    #[test]
    fn the_device_is_part_of_the_key() {
        let page = |key, time, op| request(key, Some(4096), time, op);
        assert_eq!(
            requests(Format::Mqsim, b"11 0 8 16 1\n12 5 8 1 0\n"),
            [
                page(1, 11, Op::Get),
                page(2, 11, Op::Get),
                page(5 << 44 | 1, 12, Op::Set)
            ]
        );
    }

    #[test]
    fn long_requests_cross_batches_without_loss() {
        let keys: Vec<u64> = requests(Format::Mqsim, b"1 0 0 12000 1\n2 0 80 8000 0\n")
            .iter()
            .map(|r| r.key)
            .collect();
        assert_eq!(keys, (0..1500).chain(10..1010).collect::<Vec<u64>>());
    }

    #[test]
    fn damage_is_named_by_record_and_byte() {
        let damaged = |text: &str| damage(Format::Mqsim, format!("1 0 8 8 1\n{text}").as_bytes());
        let (record, offset, what) = damaged("1 0 8 8 2\n");
        assert_eq!((record, offset), (2, 18));
        assert_eq!(what, "type: expected 0 (write) or 1 (read), found `2`");
        assert_eq!(damaged("1 0 8 8\n").2, "the line ends before the type");
        assert_eq!(damaged("1 0 8 8 1 1\n").1, 20);
        assert_eq!(damaged("1 1048576 8 8 1\n").1, 12);
        assert_eq!(damaged("1 0 140737488355328 8 1\n").1, 14);
        assert_eq!(damaged("1 0 8 8388609 1\n").1, 16);
    }
}
