//! What a handler is given, and what it may say.

use std::error::Error;

use idemp_receiver::{HandlerError, MemoryStore, ReceiverConfig, Reply, Scope};

use crate::support::{BODY, KEY, Signed, by_default, receiver};

#[tokio::test]
async fn an_event_knows_its_scope_and_shows_no_payload() {
    let config = ReceiverConfig {
        scope: Scope::named("langchain").unwrap(),
        ..ReceiverConfig::default()
    };
    let receiver = receiver(MemoryStore::new(), config);
    let signed = Signed::new(KEY, BODY);
    let reply = receiver.receive(signed.incoming(), async |event| {
        assert_eq!((event.scope(), event.key()), (Some("langchain"), KEY));
        assert_eq!(
            format!("{event:?}"),
            "Event { key: ClaimKey(/langchain:req-42:tool_end:1), event_type: \"tool_end\", body_len: 46, .. }"
        );
        Ok(())
    });
    assert_eq!(reply.await, Reply::Ok);
}

#[tokio::test]
async fn data_of_another_shape_has_a_place_and_shows_no_payload() {
    let body = "{\"data\": {\n\"output\": 4711}, \"event\": \"tool_end\"}";
    let (receiver, signed) = (by_default(), Signed::new(KEY, body));
    let reply = receiver.receive(signed.incoming(), async |event| {
        let error = event.data::<std::collections::HashMap<String, bool>>().unwrap_err();
        assert_eq!((error.line(), error.column()), (2, 14));
        let text = "the data has an unexpected shape at line 2 column 14";
        assert_eq!(error.to_string(), text);
        let error = HandlerError::from(error);
        assert_eq!(error.to_string(), "the handler rejected the event");
        assert_eq!(error.source().unwrap().to_string(), text);
        assert_eq!(HandlerError::Failed.to_string(), "the handler failed");
        assert!(HandlerError::Failed.source().is_none());
        Err(error)
    });
    assert_eq!(reply.await, Reply::Rejected);
}
