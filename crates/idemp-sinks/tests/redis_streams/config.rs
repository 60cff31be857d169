//! Configurations that make no sink, and what none of them shows.

use idemp_sinks::redis_streams::RedisStreamsErrorKind as Kind;

use super::*;
use server::Reply;

fn plain() -> RedisStreamsConfig {
    RedisStreamsConfig::new("redis://127.0.0.1:1", "webhooks", Secret::new("s").unwrap())
}

#[test]
fn each_fault_names_its_field() {
    type Change = fn(&mut RedisStreamsConfig);
    let cases: [(Kind, Change); 15] = [
        (Kind::Url, |config| config.url = String::new()),
        (Kind::Url, |config| config.url = "http://127.0.0.1".into()),
        (Kind::Url, |config| config.url = "unix:///run/redis.sock".into()),
        (Kind::Url, |config| config.url = "redis://".into()),
        (Kind::Url, |config| config.url = "redis://h/first".into()),
        (Kind::Url, |config| config.url = "redis://h/0?stream=s".into()),
        (Kind::Url, |config| config.url = "rediss://h#insecure".into()),
        (Kind::Url, |config| {
            config.cluster = true;
            config.url = "redis://h/1".into();
        }),
        (Kind::StartupNodes, |config| {
            config.startup_nodes = vec!["redis://h".into()]
        }),
        (Kind::StartupNodes, |config| {
            config.cluster = true;
            config.startup_nodes = vec!["h:1".into()];
        }),
        (Kind::Stream, |config| config.stream = String::new()),
        (Kind::Stream, |config| config.stream = "a\nb".into()),
        (Kind::Maxlen, |config| config.maxlen = Some(0)),
        (Kind::ConnectTimeout, |config| config.connect_timeout = Duration::ZERO),
        (Kind::RootCertificates, |config| {
            config.url = "rediss://h".into();
            config.root_certificates = b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n".to_vec();
        }),
    ];
    RedisStreamsSink::new(plain()).unwrap();
    for (kind, change) in cases {
        let mut config = plain();
        change(&mut config);
        let error = RedisStreamsSink::new(config.clone()).unwrap_err();
        assert_eq!(error.kind(), kind, "{config:?}");
    }
}

#[test]
fn nothing_shows_a_login_or_a_secret() {
    let config = RedisStreamsConfig {
        username: Some("hidden1".into()),
        password: Some("hidden2".into()),
        ..RedisStreamsConfig::new("redis://hidden3:hidden4@h:7/2", "s", Secret::new("hidden5").unwrap())
    };
    let mut broken = config.clone();
    broken.url = "redis://hidden3:hidden4@h:7/two".into();
    let error = RedisStreamsSink::new(broken.clone()).unwrap_err();
    let sink = RedisStreamsSink::new(config.clone()).unwrap();
    let shown = format!("{config:?} {broken:?} {error} {error:?} {sink:?}");
    assert!(!shown.contains("hidden"), "{shown}");
    assert!(shown.contains("h:7"), "{shown}");
}

#[tokio::test]
async fn the_login_and_the_database_come_first() {
    let server = Server::start(&[Reply::Id]).await;
    for (url, username, password, login) in [
        (
            format!("redis://u%3A1:p%40s@{}/3", server.address()),
            None,
            None,
            vec!["AUTH", "u:1", "p@s"],
        ),
        (
            format!("redis://:p@{}/3", server.address()),
            None,
            None,
            vec!["AUTH", "p"],
        ),
        (
            format!("redis://a:b@{}/3", server.address()),
            Some("u"),
            Some("p"),
            vec!["AUTH", "u", "p"],
        ),
    ] {
        let before = server.commands().len();
        let sink = RedisStreamsSink::new(RedisStreamsConfig {
            username: username.map(str::to_owned),
            password: password.map(str::to_owned),
            ..RedisStreamsConfig::new(url, "webhooks", Secret::new("s").unwrap())
        })
        .unwrap();
        assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
        let commands = server.commands().split_off(before);
        assert_eq!(commands[0], login);
        assert_eq!(commands[1], ["SELECT", "3"]);
        assert_eq!(commands[2][0], "XADD");
    }
}
