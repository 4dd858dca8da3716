use twox_hash::XxHash3_64;

use crate::testing::{damage, request, requests};
use crate::{Format, Op};

mod kv {
    use super::*;

    const HEADER: &str = "op_time,key,key_size,op,op_count,size,cache_hits,ttl,usecase,sub_usecase\n";

    #[test]
    fn operations_sizes_and_hashed_keys_are_read() {
        let rows = "10,aa,4,GET,3,87,1,0,1,2\n11,bb,4,SET_LEASE,1,12,0,60,1,2\n12,aa,4,DELETE,1,0,0,0,1,2\n";
        let (aa, bb) = (XxHash3_64::oneshot(b"aa"), XxHash3_64::oneshot(b"bb"));
        let expected = [
            request(aa, Some(87), 10, Op::Get),
            request(bb, Some(12), 11, Op::Set),
            request(aa, Some(0), 12, Op::Delete),
        ];
        assert_eq!(
            requests(Format::MetaKv, format!("{HEADER}{rows}").as_bytes()),
            expected
        );
        let other_order = "key,op,size,op_count,key_size\naa,GET_LEASE,87,1,4\n";
        assert_eq!(
            requests(Format::MetaKv, other_order.as_bytes()),
            [request(aa, Some(87), 0, Op::Get)]
        );
    }

    #[test]
    fn damage_is_named_by_record_and_byte() {
        let start = HEADER.len() as u64;
        let damaged = |rows: &str| damage(Format::MetaKv, format!("{HEADER}{rows}").as_bytes());
        let (record, offset, what) = damaged("10,aa,4,GETT,3,87,1,0,1,2\n");
        assert_eq!((record, offset), (1, start + 8));
        assert!(what.ends_with("found `GETT`"), "{what}");
        assert_eq!(damaged("10,aa,4,GET,3,8x,1,0,1,2\n").1, start + 14);
        assert_eq!(damaged("10,,4,GET,3,8,1,0,1,2\n").1, start + 3);
        assert_eq!(
            damaged("10,aa,4,GET,3,87,1\n").2,
            "the line ends before the last column"
        );
        assert_eq!(damaged("10,aa,4,GET,3,87,1,0,1,2,9\n").1, start + 25);
        assert_eq!(
            damage(Format::MetaKv, b"1,aa,4,GET\n").2,
            "the header has no column `key`"
        );
    }
}

mod block {
    use super::*;

    const HEADER: &str = "op_time,block_id,block_id_size,io_size,io_offset,user_name,op_name,op_count\n";

    #[test]
    fn a_record_is_one_request_of_its_block() {
        let rows =
            "10,a-1,40,8388608,0,7,getChunkData.Permanent,3\n11,b-2,40,5,512,7,putChunk.NotInitialized,1\n";
        let (a, b) = (XxHash3_64::oneshot(b"a-1"), XxHash3_64::oneshot(b"b-2"));
        let expected = [
            request(a, Some(8_388_608), 10, Op::Get),
            request(b, Some(5), 11, Op::Set),
        ];
        let text = format!("{HEADER}{rows}");
        assert_eq!(requests(Format::MetaBlock, text.as_bytes()), expected);
    }

    #[test]
    fn damage_is_named_by_record_and_byte() {
        let start = HEADER.len() as u64;
        let damaged = |rows: &str| damage(Format::MetaBlock, format!("{HEADER}{rows}").as_bytes());
        let (record, offset, what) = damaged("10,a,40,8,0,7,dropChunk,1\n");
        assert_eq!((record, offset), (1, start + 14));
        assert!(what.ends_with("found `dropChunk`"), "{what}");
        assert_eq!(damaged("10,a,40,-8,0,7,putChunk,1\n").1, start + 8);
        assert_eq!(
            damaged("10,a,40,8,0,7,putChunk\n").2,
            "the line ends before the last column"
        );
        assert_eq!(damaged("10,a,40,8,0,7,putChunk,1,2\n").1, start + 25);
        assert_eq!(
            damage(Format::MetaBlock, b"1,a,4\n").2,
            "the header has no column `block_id`"
        );
    }
}

mod wiki {
    use super::*;

    const HEADER: &str = "relative_unix\thashed_host_path_query\tresponse_size\ttime_firstbyte\r\n";

    #[test]
    fn columns_go_by_the_header_and_by_position_without_one() {
        let expected = [
            request(-5i64 as u64, Some(100), 9, Op::Get),
            request(6, Some(0), 10, Op::Get),
        ];
        let rows = "9\t-5\t100\t1.5E-4\r\n10\t6\t0\t0.1\r\n";
        assert_eq!(
            requests(Format::WikiTsv, format!("{HEADER}{rows}").as_bytes()),
            expected
        );
        assert_eq!(requests(Format::WikiTsv, rows.as_bytes()), expected);
        let upload = "relative_unix\thashed_host_path_query\timage_type\tresponse_size\ttime_firstbyte\n\
                      9\t-5\tjpeg\t100\t0.2\n10\t6\tpng\t0\t0.2\n";
        assert_eq!(requests(Format::WikiTsv, upload.as_bytes()), expected);
    }

    #[test]
    fn damage_is_named_by_record_and_byte() {
        let damaged = |rows: &str| damage(Format::WikiTsv, format!("{HEADER}{rows}").as_bytes());
        let start = HEADER.len() as u64;
        assert_eq!(
            damaged("9\t5\t1\t0.1\n9\t5\n"),
            (2, start + 13, "the line ends before the size".into())
        );
        assert_eq!(damaged("9\t5\t-1\t0.1\n").1, start + 4);
        assert_eq!(damaged("9\t5\t1\t0.1\tmore\n").1, start + 10);
        assert_eq!(damaged("9\t5\t1\n").2, "the line ends before the last column");
        let headless = damage(Format::WikiTsv, b"relative_unix\tkey\n");
        assert_eq!(
            headless,
            (1, 0, "the header has no column `hashed_host_path_query`".into())
        );
    }
}

mod nasa {
    use super::*;

    const HEADER: &str = "host\tlogname\ttime\tmethod\turl\tresponse\tbytes\treferer\tuseragent\n";

    #[test]
    fn columns_go_by_the_header_and_by_position_without_one() {
        let rows = "a.example\t-\t807301196\tGET\t/x.html\t200\t8677\t\t\n\
                    b.example\t-\t807301197\tGET\t/y\t200\t12\t\t\nc\t-\t807301198\tGET\t/z\t200\t\n";
        let key = XxHash3_64::oneshot;
        let expected = [
            request(key(b"/x.html"), Some(8677), 807_301_196, Op::Get),
            request(key(b"/y"), Some(12), 807_301_197, Op::Get),
            request(key(b"/z"), None, 807_301_198, Op::Get),
        ];
        assert_eq!(
            requests(Format::NasaTsv, format!("{HEADER}{rows}").as_bytes()),
            expected
        );
        assert_eq!(requests(Format::NasaTsv, rows.as_bytes()), expected);
        let other =
            "url\tbytes\tresponse\thost\ttime\tmethod\n/y\t5\t200\th\t7\tGET\n/y\t5\t500\th\t7\tGET\n";
        assert_eq!(
            requests(Format::NasaTsv, other.as_bytes()),
            [request(key(b"/y"), Some(5), 7, Op::Get)]
        );
    }

    #[test]
    fn what_no_cache_could_serve_does_not_count_and_no_bytes_are_no_size() {
        let rows = [
            ("HEAD", "/x", "200", "0"),
            ("POST", "/x", "200", "9"),
            ("GET", "/x", "304", "0"),
            ("GET", "/x", "404", "-"),
            ("GET", "/x", "302", "70"),
            ("GET", "/x", "200", "-"),
            ("GET", "/y", "304", "-"),
            ("GET", "/x", "200", "8677"),
            ("GET", "/x", "403", "12"),
            ("GET", "/x", "200", "0"),
        ];
        let rows: String = rows
            .iter()
            .map(|(method, url, response, bytes)| format!("h\t-\t7\t{method}\t{url}\t{response}\t{bytes}\n"))
            .collect();
        let (x, y) = (XxHash3_64::oneshot(b"/x"), XxHash3_64::oneshot(b"/y"));
        let get = |key, size| request(key, size, 7, Op::Get);
        assert_eq!(
            requests(Format::NasaTsv, rows.as_bytes()),
            [
                get(x, Some(8677)),
                get(x, Some(8677)),
                get(y, None),
                get(x, Some(8677)),
                get(x, None),
            ]
        );
    }

    #[test]
    fn damage_is_named_by_record_and_byte() {
        let start = HEADER.len() as u64;
        let damaged = |rows: &str| damage(Format::NasaTsv, format!("{HEADER}{rows}").as_bytes());
        assert_eq!(damaged("h\t-\tx\tGET\t/\t200\t5\n").1, start + 4);
        assert_eq!(damaged("h\t-\t1\tGET\t\t200\t5\n").1, start + 10);
        assert_eq!(damaged("h\t-\t1\tGET\t/\t200\tx\n").1, start + 16);
        assert_eq!(
            damaged("h\t-\t1\tGET\t/\t200\n").2,
            "the line ends before the bytes"
        );
        assert_eq!(damage(Format::NasaTsv, b"host\turl\n").0, 1);
    }
}
