//! Every code that SNS answers with, and what it means. One request each.

use idemp_core::{Cause, Code, ErrorClass};
use idemp_testkit::peer::{Answer, Peer};

use ErrorClass::{Ambiguous, PushBack, RejectsConfiguration, RejectsEvent, Transient};

use crate::{AMPLE, deliver, failed, refused, sink};

/// Status, code on the wire, meaning. The first block has types in the SDK, the second has none.
const CODES: &[(u16, &str, ErrorClass)] = &[
    (400, "InvalidParameter", RejectsEvent),
    (400, "ParameterValueInvalid", RejectsEvent),
    (400, "ValidationException", RejectsEvent),
    (403, "AuthorizationError", RejectsConfiguration),
    (403, "InvalidSecurity", RejectsConfiguration),
    (404, "NotFound", RejectsConfiguration),
    (400, "EndpointDisabled", RejectsConfiguration),
    (400, "PlatformApplicationDisabled", RejectsConfiguration),
    (400, "KMSAccessDenied", RejectsConfiguration),
    (400, "KMSDisabled", RejectsConfiguration),
    (400, "KMSNotFound", RejectsConfiguration),
    (403, "KMSOptInRequired", RejectsConfiguration),
    (400, "KMSInvalidState", Transient),
    (400, "KMSThrottling", PushBack),
    (500, "InternalError", Ambiguous),
    //
    (400, "InvalidParameterValue", RejectsEvent),
    (400, "ValidationError", RejectsEvent),
    (400, "AccessDeniedException", RejectsConfiguration),
    (403, "AccessDenied", RejectsConfiguration),
    (400, "NotAuthorized", RejectsConfiguration),
    (403, "ExpiredToken", RejectsConfiguration),
    (403, "ExpiredTokenException", RejectsConfiguration),
    (403, "InvalidClientTokenId", RejectsConfiguration),
    (403, "UnrecognizedClientException", RejectsConfiguration),
    (403, "SignatureDoesNotMatch", RejectsConfiguration),
    (400, "IncompleteSignature", RejectsConfiguration),
    (403, "MissingAuthenticationToken", RejectsConfiguration),
    (400, "RequestExpired", RejectsConfiguration),
    (403, "OptInRequired", RejectsConfiguration),
    (500, "InternalFailure", Ambiguous),
    (503, "ServiceUnavailable", Ambiguous),
    (408, "RequestTimeout", Ambiguous),
    (400, "Throttling", PushBack),
    (400, "ThrottlingException", PushBack),
    (400, "ThrottledException", PushBack),
    (429, "TooManyRequestsException", PushBack),
    (503, "RequestLimitExceeded", PushBack),
    (503, "BandwidthLimitExceeded", PushBack),
    (503, "SlowDown", PushBack),
    (400, "RequestThrottled", PushBack),
    (400, "RequestThrottledException", PushBack),
    // Nobody knows these.
    (400, "SomethingNew", Ambiguous),
    (403, "SomethingNew", Ambiguous),
    (500, "SomethingNew", Ambiguous),
];

#[tokio::test]
async fn each_code_means_what_the_table_says() {
    let peer = Peer::start(|request| {
        let (status, code, _) = CODES[request.index];
        refused(status, code)
    })
    .await;
    let sink = sink(&peer.url("/"));
    for (count, (status, code, class)) in CODES.iter().enumerate() {
        let failure = failed(deliver(&sink, AMPLE).await);
        let expected = Cause::Code {
            class: *class,
            code: Code::new(code),
        };
        assert_eq!(failure.cause, expected, "{status} {code}");
        assert_eq!(failure.maybe_delivered, *class == Ambiguous, "{status} {code}");
        assert_eq!(failure.detail.as_str(), "as the peer said", "{status} {code}");
        assert_eq!(peer.requests().len(), count + 1, "{code}: one attempt is one request");
    }
}

#[tokio::test]
async fn an_answer_that_is_not_of_sns_is_ambiguous() {
    let answers = [
        (Answer::status(502).body("<html>bad gateway</html>"), "HTTP-502"),
        (Answer::status(500), "HTTP-500"),
        (Answer::status(503).body("busy"), "HTTP-503"),
        (Answer::status(403).body("no"), "HTTP-403"),
        (Answer::status(302).header("Location", "/elsewhere"), "HTTP-302"),
        (
            Answer::status(200).body("<PublishResponse><PublishResult/></PublishResponse>"),
            "NoMessageId",
        ),
        (Answer::status(200).body("<html>log in first</html>"), "HTTP-200"),
        // Half an error.
        (refused(400, "InvalidParameter").truncated(60), "DispatchFailure"),
    ];
    for (answer, expected) in answers {
        let peer = Peer::always(answer).await;
        let failure = failed(deliver(&sink(&peer.url("/")), AMPLE).await);
        let Cause::Code { class, code } = failure.cause else {
            panic!("{:?}", failure.cause);
        };
        assert_eq!(class, Ambiguous, "{expected}");
        assert!(failure.maybe_delivered);
        if expected != "DispatchFailure" {
            assert_eq!(code.as_str(), expected);
        }
        assert_eq!(peer.requests().len(), 1, "{expected}");
    }
}
