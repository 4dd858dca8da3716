//! The formats that are rows of columns.

use std::io::Cursor;

use crate::testing::{damage, damage_with, drain, request, requests, requests_with};
use crate::{Format, Op, Request, Trace, TraceKey, TraceOptions};
use twox_hash::XxHash3_64;

mod csv {
    use super::*;

    fn options(columns: &str) -> TraceOptions {
        TraceOptions {
            format: Some(Format::Csv),
            columns: Some(columns.parse().unwrap()),
        }
    }

    #[test]
    fn columns_are_found_by_number_and_by_name() {
        let expected = [
            request(5, Some(100), 1, Op::Get),
            request(XxHash3_64::oneshot(b"a;b"), Some(7), 2, Op::Set),
            request(5, Some(0), 3, Op::Delete),
        ];
        let text = b"when;what;key;bytes\n1.5;READ;5;100\n2; w ;\"a;b\";7\n3;Delete;\"5\" ; 0\n";
        let by_number = options("time=1,op=2,id=3,size=4,delimiter=;,header=true");
        assert_eq!(requests_with(text, &by_number), expected);
        let by_name = options("time=when,op=what,id=key,size=bytes,delimiter=semicolon,header=true");
        assert_eq!(requests_with(text, &by_name), expected);
    }

    #[test]
    fn a_column_for_the_id_is_enough() {
        let read = requests_with(b"x\ny\nx\n", &options("id=1"));
        let (x, y) = (XxHash3_64::oneshot(b"x"), XxHash3_64::oneshot(b"y"));
        assert_eq!(read, [x, y, x].map(|key| request(key, None, 0, Op::Get)));
        let spaced = requests_with(b"1 2 3\n", &options("id=2,size=3,delimiter=space"));
        assert_eq!(spaced, [request(2, Some(3), 0, Op::Get)]);
    }

    #[test]
    fn damage_is_named_by_record_and_byte() {
        let damaged = |text: &str| damage_with(text.as_bytes(), &options("id=1,size=2,op=3"));
        assert_eq!(
            damaged("1,2,r\n1,2\n"),
            (2, 9, "expected at least 3 columns, found 2".into())
        );
        assert_eq!(damaged("1,two,r\n").1, 2);
        assert_eq!(damaged("1,2,fetch\n").1, 4);
        assert_eq!(
            damaged("1,2,r\n,2,r\n"),
            (2, 6, "id: expected a key, found nothing".into())
        );
        assert_eq!(
            damaged("\"1,2,r\n"),
            (1, 0, "a quoted field does not end on its line".into())
        );
        assert_eq!(
            damaged("\"1\"x,2,r\n"),
            (1, 3, "expected a delimiter after a quoted field".into())
        );
        let headed = damage_with(b"a,b\n1,2\n", &options("id=a,size=c,header=true"));
        assert_eq!(headed, (1, 0, "the header has no column `c`".into()));
    }
}

mod triples {
    use super::*;

    #[test]
    fn time_id_size_is_read_with_any_blanks_and_line_ends() {
        let read = requests(
            Format::TimeIdSize,
            b"1 42 700\n2\t-3\t0\r\n\n  3.5   18446744073709551615 9 \n4 42 8",
        );
        let expected = [
            request(42, Some(700), 1, Op::Get),
            request(-3i64 as u64, Some(0), 2, Op::Get),
            request(u64::MAX, Some(9), 3, Op::Get),
            request(42, Some(8), 4, Op::Get),
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn damaged_time_id_size_is_named_by_record_and_byte() {
        let damaged = |text: &str| damage(Format::TimeIdSize, text.as_bytes());
        assert_eq!(
            damaged("1 2 3\n1 x 3\n"),
            (2, 8, "id: expected a 64-bit number, found `x`".into())
        );
        assert_eq!(
            damaged("1 2 3\n1 2\n"),
            (2, 9, "the line ends before the size".into())
        );
        assert_eq!(
            damaged("1 2 3 4\n"),
            (1, 6, "expected the end of the line, found `4`".into())
        );
        let (record, offset, what) = damaged("1 2 3\n\n1 2 18446744073709551616\n");
        assert_eq!((record, offset), (2, 11));
        assert!(what.contains("found `18446744073709551616`"), "{what}");
        assert_eq!(damaged("1 2 3\n\u{0}\u{0}").0, 2);
    }

    #[test]
    fn jedi_sizes_are_thousands_of_bytes() {
        let read = requests(Format::Jedi, b"1,7,30\n1,8,1\n");
        assert_eq!(
            read,
            [
                request(7, Some(30_000), 1, Op::Get),
                request(8, Some(1000), 1, Op::Get)
            ]
        );
    }

    #[test]
    fn damaged_jedi_is_named_by_record_and_byte() {
        let damaged = |text: &str| damage(Format::Jedi, text.as_bytes());
        assert_eq!(damaged("1,7,30\n1,,3\n").0, 2);
        assert_eq!(damaged("1,7,30\n1,7\n").1, 10);
        let (record, offset, what) = damaged("1,7,30000000000000000000\n");
        assert_eq!((record, offset), (1, 4));
        assert!(what.contains("found `30000000000000000000`"), "{what}");
        assert!(damaged("1,7,3000000000000000000\n").2.contains("below 2^64"));
        assert_eq!(damaged("1,7,3,\n").1, 6);
    }
}

mod twitter {
    use super::*;

    #[test]
    fn operations_sizes_and_hashed_keys_are_read() {
        let rows = "0,nz:u:aa,9,116,1,get,0\n1,nz:u:aa,9,120,30,cas,3600\n2,a,b,,4,0,2,delete,0\n";
        let key = XxHash3_64::oneshot;
        assert_eq!(
            requests(Format::Twitter, rows.as_bytes()),
            [
                request(key(b"nz:u:aa"), Some(116), 0, Op::Get),
                request(key(b"nz:u:aa"), Some(120), 1, Op::Set),
                request(key(b"a,b,"), Some(0), 2, Op::Delete),
            ]
        );
    }

    #[test]
    fn damage_is_named_by_record_and_byte() {
        let good = "0,k,1,116,1,get,0\n";
        let start = good.len() as u64;
        let damaged = |row: &str| damage(Format::Twitter, format!("{good}{row}").as_bytes());
        let (record, offset, what) = damaged("0,k,1,116,1,fetch,0\n");
        assert_eq!((record, offset), (2, start + 12));
        assert!(what.ends_with("found `fetch`"), "{what}");
        assert_eq!(damaged("0,k,1,x,1,get,0\n").1, start + 6);
        assert_eq!(damaged("0,,1,1,1,get,0\n").1, start + 2);
        assert_eq!(damaged("0,k,1,1,1,get,x\n").1, start + 14);
        assert_eq!(damaged("0,k,1,116,1,get\n").2, "the line ends before the ttl");
        assert_eq!(damaged("0,k,1\n").2, "the line ends before the value size");
        assert_eq!(damaged("0,k\n").2, "the line ends before the key size");
        assert_eq!(damaged("0\n").2, "the line ends before the key");
    }
}

mod mqsim {
    use super::*;

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

mod blkreplay {
    use super::*;

    #[test]
    fn records_between_comments_are_split_into_pages() {
        let text = b"\nCopyright\n#####\nstart ; sector; length ; op ;  replay_delay=0 ; replay_duration=0\n\
            \x20     0.46 ;     15 ;   2 ; W ; 0.0 ; 0.0\nnote; with; one; x; y; z\n 7.9 ;0;1;R;0;0\n";
        let page = |key, time, op| request(key, Some(4096), time, op);
        assert_eq!(
            requests(Format::Blkreplay, text),
            [page(1, 0, Op::Set), page(2, 0, Op::Set), page(0, 7, Op::Get)]
        );
    }

    #[test]
    fn damaged_records_are_named_and_files_without_any_refused() {
        let damaged = |text: &str| damage(Format::Blkreplay, text.as_bytes());
        assert_eq!(
            damaged("c\n1 ; 2 ; 1 ; R ; 0 ; 0\n1 ;  x ; 1 ; W ; 0 ; 0\n").1,
            29
        );
        assert_eq!(damaged("-1 ; 2 ; 1 ; R ; 0 ; 0\n").1, 0);
        assert_eq!(damaged("1 ; 2 ; 999999999999 ; R ; 0 ; 0\n").1, 8);
        assert_eq!(damaged("1 ; 2 ; 99999999999999999999 ; R ; 0 ; 0\n").1, 8);
        let (record, offset, what) = damaged("a\nb\n");
        assert_eq!((record, offset), (1, 0));
        assert!(what.starts_with("no line is a record (start ; sector"), "{what}");
        assert!(requests(Format::Blkreplay, b"").is_empty());
    }
}

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

mod samples {
    use super::*;
    use pumice_world::mix64;

    fn text(key: &str) -> u64 {
        XxHash3_64::oneshot(key.as_bytes())
    }

    /// The key of a part, and of the parts before.
    fn with(before: u64, part: &str) -> u64 {
        mix64(before).wrapping_add(text(part))
    }

    /// The key of a disk request that is not split.
    fn extent(volume: u64, offset: u64) -> u64 {
        mix64(mix64(volume).wrapping_add(mix64(offset)))
    }

    /// The hash of a volume's name of two parts.
    fn volume(first: &str, second: &str) -> u64 {
        XxHash3_64::oneshot_with_seed(text(first), second.as_bytes())
    }

    const MSR: &str = "128166372000000000,web,0,Read,8192,4096,1200\n\
                       128166372000000001,web,0,Write,12288,8192,900\n\
                       128166372000000002,web,1,Read,8192,512,41\n";
    const ALIBABA: &str = "3,R,8192,4096,1577808000000100\n\
                           3,W,12288,8192,1577808000000200\n\
                           7,R,8192,512,1577808000000300\n";
    const TENCENT: &str = "1538323200,16,8,0,1300\n1538323200,24,16,1,1300\n1538323201,16,1,0,1301\n";
    const SYSTOR: &str = "Timestamp,Response,IOType,LUN,Offset,Size\n\
                          1456135200.013118000,0.001,R,4,8192,4096\n\
                          1456135200.513118000,,,4,8192,4096\n\
                          1456135201.250000000,0.002,W,6,12288,8192\n";

    #[test]
    fn three_lines_of_each_preset_are_read_and_shown_by_content() {
        let (get, set, delete) = (Op::Get, Op::Set, Op::Delete);
        let photo = |id, format, size| with(with(text(id), format), size);
        let (web0, web1) = (volume("web", "0"), volume("web", "1"));
        let (a, b) = ("0f".repeat(20), "e1".repeat(20));
        let photos = format!(
            "20160201164604 {a} 5 m 12903 1 PHONE 1\n20160229235959 {a} 5 b 50000 0 PC 0\n20160301000000 {b} 7 l 1 0 PC 3\n"
        );
        let cdn = "timestamp,cacheKey,OpType,objectSize,responseSize,responseHeaderSize,rangeStart,rangeEnd,TTL,SamplingRate,cache_hit,\
                   item_value,RequestHandler,cdn_content_type_id,vip_type\n\
                   1678838400,77,1,1000,1200,200,-1,-1,3600,0.2,1,1,4,-,2\n\
                   1678838400,78,1,5000,600,100,0,499,3600,0.2,0,1,4,3,2\n\
                   1678838401,77,1,1000,1200,200,-1,-1,3600,0.2,1,1,4,-,2\n";
        let upload = "relative_unix\thashed_path_query\timage_type\tresponse_size\ttime_firstbyte\n\
                      0\t-9\tjpeg\t3000\t1.2E-4\n0\t44\tpng\t70\t0.1\n1\t-9\tjpeg\t3000\t0.0001\n";
        let cos = "1 REST.PUT.OBJECT 8d4f 1056\n20 REST.HEAD.OBJECT 39d1 528\n31 REST.GET.OBJECT 8d4f 1056 0 99\n\
                   44 REST.DELETE.OBJECT 8d4f\n";
        let expected: [(Format, &str, Vec<Request>); 8] = [
            (
                Format::Msr,
                MSR,
                vec![
                    request(extent(web0, 8192), Some(4096), 128_166_372_000_000_000, get),
                    request(extent(web0, 12288), Some(8192), 128_166_372_000_000_001, set),
                    request(extent(web1, 8192), Some(512), 128_166_372_000_000_002, get),
                ],
            ),
            (
                Format::AlibabaBlock,
                ALIBABA,
                vec![
                    request(extent(3, 8192), Some(4096), 1_577_808_000_000_100, get),
                    request(extent(3, 12288), Some(8192), 1_577_808_000_000_200, set),
                    request(extent(7, 8192), Some(512), 1_577_808_000_000_300, get),
                ],
            ),
            (
                Format::TencentBlock,
                TENCENT,
                vec![
                    request(extent(1300, 8192), Some(4096), 1_538_323_200, get),
                    request(extent(1300, 12288), Some(8192), 1_538_323_200, set),
                    request(extent(1301, 8192), Some(512), 1_538_323_201, get),
                ],
            ),
            (
                Format::Systor,
                SYSTOR,
                vec![
                    request(extent(4, 8192), Some(4096), 1_456_135_200, get),
                    request(extent(6, 12288), Some(8192), 1_456_135_201, set),
                ],
            ),
            (
                Format::TencentPhoto,
                &photos,
                vec![
                    request(photo(&a, "5", "m"), Some(12_903), 1_454_345_164, get),
                    request(photo(&a, "5", "b"), Some(50_000), 1_456_790_399, get),
                ],
            ),
            (
                Format::MetaCdn,
                cdn,
                vec![
                    request(text("77"), Some(1000), 1_678_838_400, get),
                    request(text("78"), Some(5000), 1_678_838_400, get),
                    request(text("77"), Some(1000), 1_678_838_401, get),
                ],
            ),
            (
                Format::WikiUpload,
                upload,
                vec![
                    request(-9i64 as u64, Some(3000), 0, get),
                    request(44, Some(70), 0, get),
                    request(-9i64 as u64, Some(3000), 1, get),
                ],
            ),
            (
                Format::IbmCos,
                cos,
                vec![
                    request(text("8d4f"), Some(1056), 1, set),
                    request(text("8d4f"), Some(1056), 31, get),
                    request(text("8d4f"), None, 44, delete),
                ],
            ),
        ];
        for (format, sample, expected) in expected {
            assert_eq!(requests(format, sample.as_bytes()), expected, "{format}");
            let opened = Trace::read_from(
                "sample",
                Cursor::new(sample.to_owned()),
                0,
                &TraceOptions::default(),
            );
            match opened {
                Ok(reader) => assert_eq!(reader.format_name(), format.name()),
                Err(error) => assert!(
                    format == Format::TencentBlock
                        && error.to_string().contains("could be tencent-block or csv"),
                    "{format}: {error}"
                ),
            }
        }
        let expected = [7, text("x/y"), 7].map(|key| request(key, None, 0, get));
        assert_eq!(requests(Format::Ids, b"7\nx/y\n 7 \n"), expected);
    }

    #[test]
    fn disk_requests_are_split_into_pages_where_asked() {
        let (web0, web1) = (volume("web", "0"), volume("web", "1"));
        let base = |volume: u64| volume << 44;
        for (format, sample, bases) in [
            (Format::Msr, MSR, [web0, web1]),
            (Format::AlibabaBlock, ALIBABA, [base(3), base(7)]),
            (Format::TencentBlock, TENCENT, [base(1300), base(1301)]),
            (
                Format::Mqsim,
                "1 0 16 8 1\n2 0 24 16 0\n3 5 16 1 1\n",
                [base(0), base(5)],
            ),
        ] {
            for (page_bytes, pages) in [
                (4096, vec![(0, 2), (0, 3), (0, 4), (1, 2)]),
                (8192, vec![(0, 1), (0, 1), (0, 2), (1, 1)]),
                (1 << 20, vec![(0, 0), (0, 0), (1, 0)]),
            ] {
                let options = TraceOptions {
                    format: Some(format),
                    columns: None,
                };
                let bytes = Cursor::new(sample.to_owned());
                let mut reader =
                    Trace::read_keyed("sample", bytes, 0, &options, TraceKey::Pages(page_bytes)).unwrap();
                let found = drain(&mut *reader).unwrap();
                let keys: Vec<u64> = found.iter().map(|page| page.key).collect();
                let expected = pages.iter().map(|(of, page)| bases[*of].wrapping_add(*page));
                assert_eq!(keys, expected.collect::<Vec<u64>>(), "{format} {page_bytes}");
                assert!(found.iter().all(|page| page.size == Some(page_bytes)));
                let disk = reader.records().disk.unwrap();
                assert_eq!(
                    (disk.page_bytes, disk.writes, disk.bytes),
                    (page_bytes, 1, 4096 + 8192 + 512)
                );
            }
        }
        let refused = |format, key| {
            let options = TraceOptions {
                format: Some(format),
                columns: None,
            };
            let opened = Trace::read_keyed("sample", Cursor::new("x"), 0, &options, key);
            opened.err().map_or(String::new(), |error| error.to_string())
        };
        assert!(refused(Format::Twitter, TraceKey::Pages(4096)).contains("for disk requests (formats vscsi"));
        assert!(refused(Format::Msr, TraceKey::Pages(5000)).contains("not 5000"));
        assert!(refused(Format::Msr, TraceKey::Pages(256)).contains("not 256"));
    }

    #[test]
    fn damage_is_named_by_record_and_byte() {
        let damaged = |format, good: &str, bad: &str| damage(format, format!("{good}{bad}").as_bytes());
        let at = |good: &str, more: u64| good.len() as u64 + more;
        let msr = |bad| damaged(Format::Msr, MSR, bad);
        assert_eq!(msr("1,web,0,Trim,0,1,1\n").1, at(MSR, 8));
        assert_eq!(
            msr("1,web,0,Read,x,1,1\n"),
            (
                4,
                at(MSR, 13),
                "Offset: expected a number from 0 to 18446744073709551615, found `x`".into()
            )
        );
        assert_eq!(msr("1,web,0,Read,0\n").2, "the line ends before the Size");
        assert_eq!(
            damaged(Format::Systor, SYSTOR, "1.5,0.1,T,0,0,512\n").1,
            at(SYSTOR, 8)
        );
        assert_eq!(damage(Format::Systor, b"Timestamp,Offset\n").0, 1);
        let photo = damage(Format::TencentPhoto, b"20161301164604 0f 5 m 1 1 PC 1\n");
        assert_eq!(photo.1, 0);
        assert!(photo.2.contains("20260131235959"), "{}", photo.2);
        assert_eq!(
            damage(Format::IbmCos, b"1 REST.GET.OBJECT\n").2,
            "the line ends before the id"
        );
        assert_eq!(damage(Format::Ids, b"a\nb c\n").1, 4);
    }
}
