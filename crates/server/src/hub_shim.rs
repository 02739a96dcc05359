use tidewater_engine::*;
use tidewater_model::*;
use tidewater_wire::control::WakeReason;
#[doc(hidden)]
#[allow(missing_docs)]
pub trait HubShim {
    fn refresh_scopes(
        &self,
        p: &PartitionId,
        a: Option<&ActorId>,
    ) -> impl Future<Output = ()> + Send;
    fn wake(&self, p: &PartitionId, r: WakeReason);
    fn realtime_stats(&self) -> RealtimeStats;
}
impl HubShim for Engine {
    async fn refresh_scopes(&self, _: &PartitionId, _: Option<&ActorId>) {}
    fn wake(&self, _: &PartitionId, _: WakeReason) {}
    fn realtime_stats(&self) -> RealtimeStats {
        RealtimeStats::default()
    }
}
