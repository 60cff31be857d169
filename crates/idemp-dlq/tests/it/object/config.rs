//! What is refused before a store is opened.

use idemp_dlq::{ObjectStoreDlq, S3Config, StoreErrorKind};

#[tokio::test]
async fn an_endpoint_with_a_login_is_refused_without_being_shown() {
    for endpoint in [
        "http://me:hunter2@127.0.0.1:1",
        "https://hunter2@127.0.0.1:1/path",
        "https://me:hunter2@127.0.0.1:1?x",
    ] {
        let config = S3Config {
            endpoint: Some(endpoint.to_owned()),
            allow_http: true,
            ..S3Config::new("letters")
        };
        assert!(!format!("{config:?}").contains("hunter2"), "{config:?}");
        let error = ObjectStoreDlq::s3(config).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::CannotOpen, "{endpoint}");
        assert!(error.to_string().contains("user name or password"), "{error}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
}
