//! Claims with a lease, one row each.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use idemp_core::Ttl;
use sqlx::PgPool;

use super::{Again, again, micros};
use crate::claim::{ClaimKey, Claimant, Fingerprint};
use crate::store::{Claim, ClaimStore, Completed, StoreError};

// Each statement is a transaction of its own and compares what it finds under the row's lock, with the clock of that
// moment: now() would stand still at the start of the transaction. An expired row counts as absent.

const CLAIM: &str = "
    INSERT INTO idemp_claims AS held (scope, event_key, token, epoch, fingerprint, until)
    VALUES ($1, $2, $3, 1, $4, clock_timestamp() + $5 * interval '1 microsecond')
    ON CONFLICT (scope, event_key) DO UPDATE
    SET token = excluded.token, epoch = held.epoch + 1, fingerprint = excluded.fingerprint,
        until = clock_timestamp() + $5 * interval '1 microsecond'
    WHERE held.until <= clock_timestamp() OR held.token = excluded.token";

const LOOK: &str = "
    SELECT token IS NULL, fingerprint, (extract(epoch FROM until - clock_timestamp()) * 1000000)::bigint
    FROM idemp_claims WHERE scope = $1 AND event_key = $2 AND until > clock_timestamp()";

const RENEW: &str = "
    UPDATE idemp_claims SET until = clock_timestamp() + $4 * interval '1 microsecond'
    WHERE scope = $1 AND event_key = $2 AND token = $3 AND until > clock_timestamp()";

const COMPLETE: &str = "
    UPDATE idemp_claims SET token = NULL, until = clock_timestamp() + $4 * interval '1 microsecond'
    WHERE scope = $1 AND event_key = $2 AND token = $3 AND until > clock_timestamp()";

const PUT_DONE: &str = "
    INSERT INTO idemp_claims AS held (scope, event_key, token, epoch, fingerprint, until)
    VALUES ($1, $2, NULL, 1, $3, clock_timestamp() + $4 * interval '1 microsecond')
    ON CONFLICT (scope, event_key) DO UPDATE
    SET token = NULL, epoch = held.epoch + 1, fingerprint = excluded.fingerprint,
        until = clock_timestamp() + $4 * interval '1 microsecond'
    WHERE held.until <= clock_timestamp()";

const RELEASE: &str = "DELETE FROM idemp_claims WHERE scope = $1 AND event_key = $2 AND token = $3";

const PURGE: &str = "
    DELETE FROM idemp_claims WHERE (scope, event_key) IN (
        SELECT scope, event_key FROM idemp_claims WHERE until <= clock_timestamp()
        ORDER BY until LIMIT $1 FOR UPDATE SKIP LOCKED)";

/// How often an operation is tried when others get in its way at the same moment.
const TRIES: u32 = 5;

/// Keeps claims in Postgres, version 12 or later: for handlers whose effect lies outside of the database. For effects
/// in the same database, [`PostgresInbox`](super::PostgresInbox) promises more.
///
/// Leases and TTLs go by the server's clock. A claim that is taken over gets an `epoch` one higher. When the connection
/// is lost, a claim, a renewal, a completion and a release are sent once more; they compare tokens.
///
/// [`migrate`](Self::migrate) makes the table. Rows whose time is up stay until [`purge`](Self::purge) is called, which
/// an application does from time to time.
#[derive(Clone)]
pub struct PostgresStore {
    pool: PgPool,
}

impl PostgresStore {
    /// A store over this pool. The operations are short: a few connections serve many events.
    #[must_use]
    pub const fn new(pool: PgPool) -> Self {
        Self { pool }
    }

    /// A store with a pool of its own, of 16 connections that are made when they are needed.
    ///
    /// # Errors
    /// If the address cannot be read.
    ///
    /// # Panics
    /// Outside a tokio runtime, as every operation.
    pub fn open(url: &str) -> Result<Self, StoreError> {
        Ok(Self::new(super::pool(url)?))
    }

    /// Makes the tables of the store and of the inbox where they are not there yet.
    ///
    /// # Errors
    /// If the server cannot be reached or does not allow it.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        super::migrate(&self.pool).await
    }

    /// Deletes up to `most` rows whose time is up and says how many. Rows that others are at are passed over, so
    /// several may purge at once. Call it again while it deletes as many as it may.
    ///
    /// # Errors
    /// If the server fails. Nothing has been deleted then.
    pub async fn purge(&self, most: u32) -> Result<u64, StoreError> {
        let done = sqlx::query(PURGE).bind(i64::from(most)).execute(&self.pool).await?;
        Ok(done.rows_affected())
    }

    async fn try_claim(&self, who: &Claimant, lease: Duration) -> sqlx::Result<Option<Claim>> {
        let claimed = sqlx::query(CLAIM)
            .bind(who.key.scope().unwrap_or_default())
            .bind(who.key.key())
            .bind(&who.token.as_bytes()[..])
            .bind(&who.fingerprint.as_bytes()[..])
            .bind(micros(lease))
            .execute(&self.pool)
            .await?;
        if claimed.rows_affected() == 1 {
            return Ok(Some(Claim::Claimed));
        }
        let held = self.look(&who.key).await?;
        Ok(held.map(|held| match held {
            Held { body: Some(body), .. } if body != who.fingerprint => Claim::Conflict,
            Held { done: true, .. } => Claim::Duplicate,
            Held { rest, .. } => Claim::InProgress { retry_after: rest },
        }))
    }

    /// `None` if the key is absent, or what held it a moment ago has ended.
    async fn look(&self, key: &ClaimKey) -> sqlx::Result<Option<Held>> {
        let row: Option<(bool, Option<Vec<u8>>, i64)> = sqlx::query_as(LOOK)
            .bind(key.scope().unwrap_or_default())
            .bind(key.key())
            .fetch_optional(&self.pool)
            .await?;
        Ok(row.map(|(done, body, rest)| Held {
            done,
            body: body.and_then(|body| body.try_into().ok()).map(Fingerprint::from_bytes),
            rest: Duration::from_micros(rest.try_into().unwrap_or(0)).max(Duration::from_millis(1)),
        }))
    }

    async fn try_complete(&self, who: &Claimant, ttl: Ttl) -> sqlx::Result<Completed> {
        if self.touch(COMPLETE, who, Some(ttl.as_duration())).await? {
            return Ok(Completed::Done);
        }
        let put = sqlx::query(PUT_DONE)
            .bind(who.key.scope().unwrap_or_default())
            .bind(who.key.key())
            .bind(&who.fingerprint.as_bytes()[..])
            .bind(micros(ttl.as_duration()))
            .execute(&self.pool)
            .await?;
        Ok(if put.rows_affected() == 1 {
            Completed::Late
        } else {
            Completed::Lost
        })
    }

    /// Runs a statement on the row that is the claimant's own, and says whether there is one.
    async fn touch(&self, sql: &'static str, who: &Claimant, time: Option<Duration>) -> sqlx::Result<bool> {
        let mut query = sqlx::query(sql)
            .bind(who.key.scope().unwrap_or_default())
            .bind(who.key.key())
            .bind(&who.token.as_bytes()[..]);
        if let Some(time) = time {
            query = query.bind(micros(time));
        }
        Ok(query.execute(&self.pool).await?.rows_affected() == 1)
    }

    async fn touch_again(&self, sql: &'static str, who: &Claimant, time: Option<Duration>) -> Result<bool, StoreError> {
        let mut tries = Tries::default();
        loop {
            match self.touch(sql, who, time).await {
                Err(error) if tries.another(&error) => {}
                touched => return Ok(touched?),
            }
        }
    }
}

/// What holds a key.
struct Held {
    done: bool,
    /// `None` for a mark without one, which fits every body.
    body: Option<Fingerprint>,
    rest: Duration,
}

/// How often one operation was tried.
#[derive(Default)]
struct Tries {
    contended: u32,
    /// An answer may have been lost.
    lost: bool,
}

impl Tries {
    /// Whether to try once more after this error.
    fn another(&mut self, error: &sqlx::Error) -> bool {
        match again(error) {
            Again::No => false,
            Again::Lost => !std::mem::replace(&mut self.lost, true),
            Again::Contended => self.contend(),
        }
    }

    fn contend(&mut self) -> bool {
        self.contended += 1;
        self.contended < TRIES
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").finish_non_exhaustive()
    }
}

#[async_trait]
impl ClaimStore for PostgresStore {
    async fn claim(&self, claimant: &Claimant, lease: Duration) -> Result<Claim, StoreError> {
        let mut tries = Tries::default();
        loop {
            match self.try_claim(claimant, lease).await {
                Ok(Some(claim)) => return Ok(claim),
                // What held it has ended in between.
                Ok(None) if tries.contend() => {}
                Ok(None) => {
                    let retry_after = Duration::from_millis(1);
                    return Ok(Claim::InProgress { retry_after });
                }
                Err(error) if tries.another(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn renew(&self, claimant: &Claimant, lease: Duration) -> Result<bool, StoreError> {
        self.touch_again(RENEW, claimant, Some(lease)).await
    }

    async fn complete(&self, claimant: &Claimant, ttl: Ttl) -> Result<Completed, StoreError> {
        let mut tries = Tries::default();
        let completed = loop {
            match self.try_complete(claimant, ttl).await {
                Err(error) if tries.another(&error) => {}
                completed => break completed?,
            }
        };
        // The answer that was lost may have been that it is done; then it is found done with our own body.
        if completed == Completed::Lost && tries.lost {
            let held = self.look(&claimant.key).await?;
            let own = held.is_some_and(|held| held.done && held.body == Some(claimant.fingerprint));
            return Ok(if own { Completed::Done } else { Completed::Lost });
        }
        Ok(completed)
    }

    async fn release(&self, claimant: &Claimant) -> Result<bool, StoreError> {
        self.touch_again(RELEASE, claimant, None).await
    }

    async fn mark_seen(&self, key: &ClaimKey, ttl: Ttl) -> Result<bool, StoreError> {
        let mut tries = Tries::default();
        loop {
            let put = sqlx::query(PUT_DONE)
                .bind(key.scope().unwrap_or_default())
                .bind(key.key())
                .bind(None::<&[u8]>)
                .bind(micros(ttl.as_duration()))
                .execute(&self.pool)
                .await;
            match put {
                // Never after a lost answer: it would not know its own mark.
                Err(error) if again(&error) == Again::Contended && tries.contend() => {}
                put => return Ok(put?.rows_affected() == 1),
            }
        }
    }

    /// Closes the pool, also for others who use it.
    async fn close(&self) {
        self.pool.close().await;
    }
}
