//! Recurring submissions: one task per tick, whoever is there to submit it.
//!
//! The task of a tick has an id that follows from the schedule's name and the tick's time, and is created only if there is
//! none: however many try, one succeeds. The schedule's record remembers the last tick that was submitted. It is written
//! after the task: a crash in between makes somebody try again, and find the task there.

mod cron;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use tenure_store::{Delete, DeleteIf, Put, PutIf, StoreError, Version};

pub use cron::Cron;

use crate::error::QueueError;
use crate::ids::{Nonce, ScheduleName, TaskId};
use crate::payload::Payload;
use crate::queue::Queue;
use crate::queue_record::{decode, encode};
use crate::retry::{RetryPolicy, maybe_millis};
use crate::store_time::StoreTime;
use crate::submit::NewTask;
use crate::task::FORMAT;
use crate::task_store::{TaskStore, in_time, read_in_time};

/// What is submitted, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleSpec {
    /// When, as cron writes it: `0 3 * * mon-fri`.
    pub cron: String,
    /// By the clocks of which zone: `Europe/Berlin`.
    #[serde(default = "utc")]
    pub time_zone: String,
    /// What each task carries.
    pub payload: Payload,
    /// The priority of each task.
    #[serde(default = "middle")]
    pub priority: u8,
    /// How long one attempt may take.
    #[serde(rename = "attempt_timeout_ms", with = "maybe_millis", default)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt_timeout: Option<Duration>,
    /// How often each task is tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    /// What to find the tasks by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

fn utc() -> String {
    "UTC".to_owned()
}

fn middle() -> u8 {
    5
}

impl ScheduleSpec {
    /// A schedule in UTC.
    pub fn new(cron: impl Into<String>, payload: Payload) -> Self {
        Self {
            cron: cron.into(),
            time_zone: utc(),
            payload,
            priority: middle(),
            attempt_timeout: None,
            retry: None,
            metadata: BTreeMap::new(),
        }
    }

    /// The same by the clocks of another zone.
    #[must_use]
    pub fn zone(mut self, zone: impl Into<String>) -> Self {
        self.time_zone = zone.into();
        self
    }

    fn times(&self) -> Result<(Cron, TimeZone), QueueError> {
        let cron = self.cron.parse::<Cron>();
        let zone = TimeZone::get(&self.time_zone);
        let zone = zone.map_err(|e| format!("time zone {:?}: {e}", self.time_zone));
        match (cron, zone) {
            (Ok(cron), Ok(zone)) => Ok((cron, zone)),
            (cron, zone) => {
                let problems = cron.err().into_iter().chain(zone.err());
                Err(QueueError::Invalid(problems.collect()))
            }
        }
    }

    /// The first tick after a moment.
    pub fn next(&self, after: StoreTime) -> Result<Option<StoreTime>, QueueError> {
        let (cron, zone) = self.times()?;
        Ok(cron.next(after.timestamp(), &zone).map(StoreTime::from))
    }

    fn submit(&self) -> NewTask {
        let mut submit = NewTask::new(self.payload.clone()).priority(self.priority);
        if let Some(timeout) = self.attempt_timeout {
            submit = submit.timeout(timeout);
        }
        if let Some(retry) = self.retry {
            submit = submit.retry(retry);
        }
        for (name, value) in &self.metadata {
            submit = submit.meta(name, value);
        }
        submit
    }
}

/// A schedule as it stands in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// The format of the record.
    pub format: u32,
    /// One more with every write.
    pub rev: u64,
    /// Which write this was.
    pub nonce: Nonce,
    /// Its name.
    pub name: ScheduleName,
    /// What and when.
    #[serde(flatten)]
    pub spec: ScheduleSpec,
    /// Ticks up to here are done with.
    pub upto: StoreTime,
    /// How many tasks were submitted.
    pub submitted: u64,
    /// How many ticks nobody was there for.
    pub missed: u64,
    /// Fields that this version does not know, kept as they came.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, serde_json::Value>,
}

impl Queue {
    /// Creates a schedule, or changes what one of this name submits and when. The first tick is one to come.
    pub async fn schedule(&self, name: &str, spec: ScheduleSpec) -> Result<Schedule, QueueError> {
        let name = ScheduleName::new(name)?;
        self.check_exists().await?;
        let now = self.now().await?;
        spec.submit().check(&self.settings())?;
        TaskId::of_tick(&name, now)?;
        if spec.next(now)?.is_none() {
            let reason = format!("{:?} never matches a time; choose another one", spec.cron);
            return Err(QueueError::invalid(reason));
        }
        let nonce = self.shelf().nonce();
        loop {
            let (schedule, version) = match self.shelf().read_schedule(&name).await? {
                Some((schedule, _)) if schedule.nonce == nonce => return Ok(schedule),
                Some((old, version)) => {
                    let schedule = Schedule {
                        rev: old.rev + 1,
                        nonce,
                        spec: spec.clone(),
                        upto: old.upto.max(now),
                        ..old
                    };
                    (schedule, Some(version))
                }
                None => (first(&name, spec.clone(), now, nonce), None),
            };
            if self.write_schedule(&schedule, version).await? {
                return Ok(schedule);
            }
        }
    }

    /// Removes a schedule. Tasks that it has submitted stay.
    pub async fn unschedule(&self, name: &str) -> Result<(), QueueError> {
        let name = ScheduleName::new(name)?;
        let key = self.layout().schedule(&name);
        let mut tried = false;
        loop {
            // By its version, not by what it says: one that cannot be read can be removed, too.
            let got = read_in_time(self.store().get(&key)).await;
            let Some(entry) = self.shelf().counted(got)? else {
                return match tried {
                    true => Ok(()),
                    false => Err(QueueError::NoSchedule(name.to_string())),
                };
            };
            tried = true;
            let delete = DeleteIf::new(&key, entry.version);
            let removed = in_time(self.store().delete_if(delete)).await;
            match self.shelf().counted(removed) {
                Ok(Delete::Won) => return Ok(()),
                Ok(Delete::Lost) | Err(StoreError::Unknown { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// All schedules, by name. Those that cannot be read are named and left out.
    pub async fn schedules(&self) -> Result<Vec<Schedule>, QueueError> {
        let prefix = self.layout().schedules();
        let listed = self
            .shelf()
            .counted(read_in_time(self.store().list(&prefix)).await)?;
        let mut all = Vec::new();
        for entry in listed.entries {
            match decode(&entry.key, &entry.value) {
                Ok(schedule) => all.push(schedule),
                Err(e) => self.shelf().note_corrupt(&e),
            }
        }
        Ok(all)
    }

    /// Submits what is due of all schedules, and says when the next tick is. Any number may do so at the same time.
    pub async fn tick(&self) -> Result<Option<StoreTime>, QueueError> {
        let mut next = None::<StoreTime>;
        for schedule in self.schedules().await? {
            match self.tick_one(schedule).await {
                Ok(Some(at)) => next = Some(next.unwrap_or(at).min(at)),
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "checking a schedule for due tasks failed"),
            }
        }
        Ok(next)
    }

    /// Submits the last tick that is due; those before it were missed, and are counted.
    async fn tick_one(&self, schedule: Schedule) -> Result<Option<StoreTime>, QueueError> {
        let now = self.now().await?;
        let (cron, zone) = schedule.spec.times()?;
        let (upto, now) = (schedule.upto.timestamp(), now.timestamp());
        let next = cron.next(upto.max(now), &zone).map(StoreTime::from);
        let (passed, last) = cron.passed(upto, now, &zone);
        let Some(tick) = last.map(StoreTime::from) else {
            return Ok(next);
        };
        // The others may have taken long since it was read: if the tick is done with, its task may be gone already.
        if !self.is_awaited(&schedule.name, tick).await? {
            return Ok(next);
        }
        let id = TaskId::of_tick(&schedule.name, tick)?;
        let submit = schedule.spec.submit().id(id);
        let submit = submit.meta("schedule", schedule.name.as_str());
        let created = self.submit(submit).await?.created;
        if created {
            self.metrics().ticks.one();
            tracing::info!(schedule = %schedule.name, %tick, "schedule submitted a task");
        }
        self.note_tick(&schedule, tick, created, passed - 1).await?;
        Ok(next)
    }

    /// Whether nobody has submitted this tick and written that down.
    async fn is_awaited(&self, name: &ScheduleName, tick: StoreTime) -> Result<bool, QueueError> {
        let read = self.shelf().read_schedule(name).await?;
        Ok(read.is_some_and(|(schedule, _)| schedule.upto < tick))
    }

    /// Remembers a tick, unless somebody else has.
    async fn note_tick(
        &self,
        seen: &Schedule,
        tick: StoreTime,
        created: bool,
        missed: u64,
    ) -> Result<(), QueueError> {
        let nonce = self.shelf().nonce();
        loop {
            let Some((mut schedule, version)) = self.shelf().read_schedule(&seen.name).await?
            else {
                return Ok(());
            };
            if schedule.upto >= tick || schedule.nonce == nonce {
                return Ok(());
            }
            schedule.rev += 1;
            schedule.nonce = nonce;
            schedule.upto = tick;
            schedule.submitted += u64::from(created);
            schedule.missed += missed;
            if self.write_schedule(&schedule, Some(version)).await? {
                return Ok(());
            }
        }
    }

    /// Writes a schedule down; false if it has to be read again.
    async fn write_schedule(
        &self,
        schedule: &Schedule,
        version: Option<Version>,
    ) -> Result<bool, QueueError> {
        let (key, value) = (self.layout().schedule(&schedule.name), encode(schedule));
        let put = match version {
            Some(version) => PutIf::update(key, value, version),
            None => PutIf::create(key, value),
        };
        match self
            .shelf()
            .counted(in_time(self.store().put_if(put)).await)
        {
            Ok(Put::Won(_)) => Ok(true),
            Ok(Put::Lost) | Err(StoreError::Unknown { .. }) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

impl TaskStore {
    async fn read_schedule(
        &self,
        name: &ScheduleName,
    ) -> Result<Option<(Schedule, Version)>, QueueError> {
        let key = self.layout.schedule(name);
        let got = self.counted(read_in_time(self.store.get(&key)).await)?;
        got.map(|entry| Ok((decode(&key, &entry.value)?, entry.version)))
            .transpose()
    }
}

/// Which ticks schedules remember, each read once.
#[derive(Debug, Default)]
pub(crate) struct RememberedTicks(BTreeMap<ScheduleName, Option<StoreTime>>);

impl RememberedTicks {
    /// Whether this is no task of a tick, or its schedule will never submit it again.
    pub(crate) async fn contains(
        &mut self,
        shelf: &TaskStore,
        id: &TaskId,
    ) -> Result<bool, QueueError> {
        let Some((name, tick)) = id.tick() else {
            return Ok(true);
        };
        if !self.0.contains_key(&name) {
            let upto = match shelf.read_schedule(&name).await {
                Ok(read) => read.map(|(schedule, _)| schedule.upto),
                // Nobody submits what such a one says; whoever writes it anew begins with the time that it is then.
                Err(e) if e.is_unreadable() => None,
                Err(e) => return Err(e),
            };
            self.0.insert(name.clone(), upto);
        }
        let upto = self.0.get(&name).copied().flatten();
        Ok(upto.is_none_or(|upto| upto >= tick))
    }
}

fn first(name: &ScheduleName, spec: ScheduleSpec, now: StoreTime, nonce: Nonce) -> Schedule {
    Schedule {
        format: FORMAT,
        rev: 1,
        nonce,
        name: name.clone(),
        spec,
        upto: now,
        submitted: 0,
        missed: 0,
        unknown: BTreeMap::new(),
    }
}
