//! memcached's own options.

use clap::Parser;
use pumice_cli::Familiar;
use pumice_server::settings::Settings;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    familiar: Familiar,
}

pub(crate) fn read(line: &str) -> Result<(Settings, Familiar, Vec<String>), String> {
    let words = ["serve"].into_iter().chain(line.split_whitespace());
    let mut line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
    let warnings = line.familiar.fold_into(&mut line.settings);
    let warnings = warnings.map_err(|error| error.to_string())?;
    Ok((line.settings, line.familiar, warnings))
}

fn texts(setting: &Option<Vec<String>>) -> String {
    setting.as_deref().unwrap_or_default().join(" ")
}

#[test]
fn the_line_that_distributions_start_memcached_with_is_understood() {
    let (settings, familiar, warnings) = read(
        "-m 64 -p 11211 -u memcache -l 127.0.0.1,::1 -P /run/memcached/memcached.pid -c 1024 -t4 -I 2m -U 0 -vv",
    )
    .unwrap();
    assert_eq!(texts(&settings.memcached), "127.0.0.1:11211 [::1]:11211");
    assert_eq!(familiar.memory, Some(64 << 20));
    assert_eq!(texts(&settings.max_connections), "1024");
    assert_eq!(texts(&settings.threads), "4");
    assert_eq!(texts(&settings.max_item_size), "2m");
    assert_eq!(familiar.user.as_deref(), Some("memcache"));
    assert_eq!(familiar.pid_file, Some("/run/memcached/memcached.pid".into()));
    assert_eq!(familiar.verbosity, 2);
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn what_has_no_effect_is_said() {
    let (_, _, warnings) = read(
        "-o modern,hash_algorithm=murmur3 -d -U 11211 -R 20 -o no_lru_crawler -W -B binary -o ssl_verify_mode=0,relaxed_privileges",
    )
    .unwrap();
    assert_eq!(
        warnings,
        [
            "option `-R` is ignored",
            "option `-d` is ignored: the server stays in the foreground",
            "option `-U 11211` is ignored: UDP is not served",
            "option `-B binary` is ignored: both protocols are served",
            "option `-o modern` is ignored",
            "option `-o hash_algorithm` is ignored",
            "option `-o no_lru_crawler` is ignored",
        ]
    );
}

#[test]
fn what_promises_protection_that_there_is_not_is_refused() {
    for line in [
        "-F",
        "--disable-flush-all",
        "-M",
        "-S",
        "-X",
        "-dX",
        "-k",
        "-e /dev/shm/f",
        "-o ssl_verify_mode=1",
        "-o modern,ssl_verify_mode=2",
        "-o ssl_verify_mode",
        "-o ssl_ca_cert=/ca",
        "-o ssl_ciphers=HIGH",
        "-o ssl_min_version=tlsv1.3",
        "-o ssl_min_version=3",
        "-o ssl_keyformat=DER",
        "-o drop_privileges",
        "-o sock_cookie_id=7",
        "-o ext_path=/f:1G",
        "-o ssl_verfy_mode=2",
    ] {
        let said = read(line).unwrap_err();
        assert!(said.contains("is refused: "), "{line}: {said}");
    }
}

#[test]
fn long_names_joined_letters_and_both_kinds_of_options_work() {
    let (settings, familiar, _) =
        read("--port=0 --memory-limit 8 -dvs /tmp/s -I512k -a 700 --flash-size 1g --conn-limit 5").unwrap();
    assert_eq!(texts(&settings.memcached), "unix:/tmp/s");
    assert_eq!(familiar.memory, Some(8 << 20));
    assert_eq!(texts(&settings.max_item_size), "512k");
    assert_eq!(texts(&settings.unix_mode), "700");
    assert_eq!(texts(&settings.flash_size), "1g");
    assert_eq!(texts(&settings.max_connections), "5");
    assert_eq!(familiar.verbosity, 1);
    assert_eq!(read("-m 2g").unwrap().1.memory, Some(2 << 30));
    assert_eq!(read("-m 100mb").unwrap().1.memory, Some(100 << 20));
}

#[test]
fn authentication_tls_and_idle_timeout_are_understood() {
    let (settings, _, warnings) =
        read("-Y /users -Z -o idle_timeout=30,ssl_chain_cert=/c,ssl_key=/k").unwrap();
    assert_eq!(texts(&settings.auth_file), "/users");
    assert_eq!(
        (texts(&settings.memcached), texts(&settings.memcached_tls)),
        ("off".into(), "127.0.0.1:11211".into())
    );
    assert_eq!(texts(&settings.tls_certificate), "/c");
    assert_eq!(texts(&settings.tls_key), "/k");
    assert_eq!(texts(&settings.idle_timeout), "30");
    assert!(warnings.is_empty());
}

#[test]
fn errors_name_the_option_and_what_it_takes() {
    for (line, parts) in [
        ("-y", &["-y"][..]),
        ("word", &["word"]),
        ("--bogus=1", &["--bogus"]),
        ("-p", &["--port", "value"]),
        ("-p 65536", &["--port", "'65536'", "0..=65535"]),
        ("-m 0", &["--memory-limit", "'0'", "MiB, at least 1"]),
        ("-m 10%", &["--memory-limit", "'10%'"]),
        ("-b 0", &["--listen-backlog", "'0'"]),
        ("-B udp", &["--protocol", "'udp'", "`binary`"]),
        ("-p 0", &["`-p 0`"]),
        ("-p 5 --memcached 127.0.0.1:1", &["--memcached", "-p"]),
    ] {
        let said = read(line).unwrap_err();
        for part in parts {
            assert!(said.contains(part), "{line}: {part} is not in {said}");
        }
    }
}
