//! The messages of etcd's v3 API that we send and read, and the calls that they belong to.
//!
//! Written by hand, so that building needs no protobuf compiler. Only the fields that are used; the numbers are etcd's.

use prost::{Message, Oneof};

/// A call that is answered once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rpc {
    pub(super) path: &'static str,
    /// Whether it may change what is stored: then its outcome is unknown if the answer is lost.
    pub(super) writes: bool,
}

const fn reads(path: &'static str) -> Rpc {
    Rpc {
        path,
        writes: false,
    }
}

const fn writes(path: &'static str) -> Rpc {
    Rpc { path, writes: true }
}

pub(super) const RANGE: Rpc = reads("/etcdserverpb.KV/Range");
/// A transaction that only reads.
pub(super) const READ_TXN: Rpc = reads("/etcdserverpb.KV/Txn");
pub(super) const TXN: Rpc = writes("/etcdserverpb.KV/Txn");
pub(super) const WATCH: Rpc = reads("/etcdserverpb.Watch/Watch");
pub(super) const GRANT: Rpc = writes("/etcdserverpb.Lease/LeaseGrant");
/// Restarting the time of a lease is no write: asked twice it does no more than asked once, and it is never settled by
/// reading back.
pub(super) const KEEP_ALIVE: Rpc = reads("/etcdserverpb.Lease/LeaseKeepAlive");
pub(super) const TIME_TO_LIVE: Rpc = reads("/etcdserverpb.Lease/LeaseTimeToLive");
pub(super) const LEASES: Rpc = reads("/etcdserverpb.Lease/LeaseLeases");
pub(super) const AUTHENTICATE: Rpc = reads("/etcdserverpb.Auth/Authenticate");
pub(super) const STATUS: Rpc = reads("/etcdserverpb.Maintenance/Status");
pub(super) const MEMBERS: Rpc = reads("/etcdserverpb.Cluster/MemberList");

/// Who answered, and when in the cluster's history.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct Header {
    #[prost(uint64, tag = "1")]
    pub(super) cluster_id: u64,
    #[prost(uint64, tag = "2")]
    pub(super) member_id: u64,
    #[prost(int64, tag = "3")]
    pub(super) revision: i64,
    #[prost(uint64, tag = "4")]
    pub(super) raft_term: u64,
}

/// An answer that says who gave it.
pub(super) trait HasHeader: Message + Default + 'static {
    fn header(&self) -> Header;
}

macro_rules! answers {
    ($($message:ident)*) => {
        $(impl HasHeader for $message {
            fn header(&self) -> Header {
                self.header.unwrap_or_default()
            }
        })*
    };
}

answers!(RangeResponse TxnResponse GrantResponse KeepAliveResponse TimeToLiveResponse LeasesResponse);
answers!(AuthenticateResponse StatusResponse WatchResponse MemberListResponse);

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub(super) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) limit: i64,
    #[prost(int64, tag = "4")]
    pub(super) revision: i64,
    #[prost(bool, tag = "8")]
    pub(super) keys_only: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub(super) kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub(super) more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeleteRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RequestOp {
    #[prost(oneof = "Request", tags = "1, 2, 3, 4")]
    pub(super) request: Option<Request>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Request {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRequest),
    #[prost(message, tag = "4")]
    Txn(TxnRequest),
}

impl From<Request> for RequestOp {
    fn from(request: Request) -> Self {
        Self {
            request: Some(request),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResponseOp {
    #[prost(oneof = "Response", tags = "1, 4")]
    pub(super) response: Option<Response>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Response {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "4")]
    Txn(TxnResponse),
}

/// A comparison of a key's last change with a revision; 0 means that the key does not exist.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Compare {
    #[prost(int32, tag = "1")]
    result: i32,
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    #[prost(oneof = "Target", tags = "6")]
    with: Option<Target>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Target {
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}

impl Compare {
    pub(super) fn mod_revision_is(key: Vec<u8>, revision: i64) -> Self {
        const EQUAL: i32 = 0;
        const MOD: i32 = 2;
        Self {
            result: EQUAL,
            target: MOD,
            key,
            with: Some(Target::ModRevision(revision)),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(super) success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(super) failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(bool, tag = "2")]
    pub(super) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(super) responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchRequest {
    #[prost(oneof = "WatchRequestKind", tags = "1")]
    pub(super) ask: Option<WatchRequestKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum WatchRequestKind {
    #[prost(message, tag = "1")]
    Create(WatchCreate),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchCreate {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) start_revision: i64,
    #[prost(bool, tag = "8")]
    pub(super) fragment: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(bool, tag = "3")]
    pub(super) created: bool,
    #[prost(bool, tag = "4")]
    pub(super) canceled: bool,
    #[prost(int64, tag = "5")]
    pub(super) compact_revision: i64,
    #[prost(string, tag = "6")]
    pub(super) cancel_reason: String,
    /// Whether more of the same changes follow.
    #[prost(bool, tag = "7")]
    pub(super) fragment: bool,
    #[prost(message, repeated, tag = "11")]
    pub(super) events: Vec<Event>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    #[prost(int32, tag = "1")]
    pub(super) kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) kv: Option<KeyValue>,
}

impl Event {
    pub(super) fn is_delete(&self) -> bool {
        self.kind == 1
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GrantRequest {
    #[prost(int64, tag = "1")]
    pub(super) ttl: i64,
    #[prost(int64, tag = "2")]
    pub(super) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GrantResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeepAliveRequest {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeepAliveResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TimeToLiveRequest {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TimeToLiveResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
    #[prost(int64, tag = "4")]
    pub(super) granted_ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeasesRequest {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeasesResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub(super) leases: Vec<LeaseStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseStatus {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

/// Holds a password: never printed, though the derive would.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(super) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) password: String,
}

impl std::fmt::Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AuthenticateRequest({:?})", self.name)
    }
}

/// Holds a token: never printed either.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(super) struct AuthenticateResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(string, tag = "2")]
    pub(super) token: String,
}

impl std::fmt::Debug for AuthenticateResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AuthenticateResponse")
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StatusRequest {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(string, tag = "2")]
    pub(super) version: String,
    #[prost(int64, tag = "3")]
    pub(super) db_size: i64,
    #[prost(uint64, tag = "4")]
    pub(super) leader: u64,
    /// What the member itself complains of: alarms, for instance.
    #[prost(string, repeated, tag = "8")]
    pub(super) errors: Vec<String>,
    #[prost(int64, tag = "9")]
    pub(super) db_size_in_use: i64,
    #[prost(bool, tag = "10")]
    pub(super) is_learner: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MemberListRequest {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MemberListResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub(super) members: Vec<Member>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Member {
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(bool, tag = "5")]
    pub(super) is_learner: bool,
}
