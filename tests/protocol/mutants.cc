#include "tests/protocol/mutants.h"

namespace ckptd::sim {

const std::vector<Mutant>& Mutants() {
  static const std::vector<Mutant> mutants = {
      {"attempt part of the identity", "I1", 900000,
       [](Rules* r) { r->snapshot.attempt_in_identity = r->job.attempt_in_identity = false; }},
      {"GO only after all LOADED", "I1", 20000, [](Rules* r) { r->job.go_after_all_loaded = false; }},
      {"only the decision's tickets may load", "I1", 20000,
       [](Rules* r) { r->snapshot.only_decided_tickets = r->job.only_decided_tickets = false; }},
      {"decision file reused by a restarted coordinator", "I5", 5000000,
       [](Rules* r) { r->job.reuse_decision_file = false; }},
      {"seal only from COMPLETE", "I2", 20000, [](Rules* r) { r->snapshot.seal_only_complete = false; }},
      {"reuse only after ack or reaping", "I2", 220000, [](Rules* r) { r->snapshot.reuse_after_ack = false; }},
      {"free only below the job-wide W", "I3", 80000, [](Rules* r) { r->snapshot.free_below_watermark = false; }},
      {"W = parent at the start of an attempt", "I3", 80000, [](Rules* r) { r->snapshot.watermark_is_parent = false; }},
      {"record created before listing", "I4", 10000000, [](Rules* r) { r->job.record_before_listing = false; }},
      {"newest-check between manifest and durable", "I4", 10000000,
       [](Rules* r) { r->job.newest_check_after_manifest = false; }},
      {"dropped steps freed by G", "I5", 600000, [](Rules* r) { r->job.drop_passed_steps = false; }},
      {"lineage, not highest number", "I6", 80000, [](Rules* r) { r->job.lineage_not_number = false; }},
      {"successor re-read before deletion", "I7", 800000, [](Rules* r) { r->job.verify_before_delete = false; }},
      {"deletion marker", "I7", 10000000, [](Rules* r) { r->job.deletion_marker = false; }},
      {"check after marker", "I7", 15000000, [](Rules* r) { r->job.check_after_marker = false; }},
      {"listing skips marked", "I7", 10000000, [](Rules* r) { r->job.listing_skips_marked = false; }},
      {"all agents of the newest decision must answer before 0", "I8", 350000,
       [](Rules* r) { r->job.all_agents_before_zero = false; }},
      {"where parts were destroyed, their absence proves nothing", "I8", 10000000,
       [](Rules* r) { r->job.lost_proves_nothing = false; }},
      {"nothing is freed between STATE and decision", "I3", 50000,
       [](Rules* r) { r->snapshot.freeze_until_decision = false; }},
      {"REPORTs answer the coordinator's incarnation", "D", 12000000,
       [](Rules* r) { r->job.reports_answer_incarnation = false; }},
      {"no drop before every rank has reported", "I3", 19000000,
       [](Rules* r) { r->job.drop_after_all_reported = false; }},
      {"both rules of a restarted coordinator", "D", 4000000,
       [](Rules* r) { r->job.reports_answer_incarnation = r->job.drop_after_all_reported = false; }},
      {"seal refused when owner < seen", "D", 250000, [](Rules* r) { r->snapshot.refuse_old_owner = false; }},
      {"check after the decision file", "D", 1000000, [](Rules* r) { r->job.check_after_decision = false; }},
      {"refusal of old STATE", "D", 50000,
       [](Rules* r) { r->snapshot.refuse_old_state = r->job.refuse_old_state = false; }},
      {"intersection, not union", "I3", 250000, [](Rules* r) { r->job.intersection = false; }},
      {"a rank is gone only when it was reaped", "D", 20000, [](Rules* r) { r->snapshot.gone_when_reaped = false; }},
      {"seen persisted", "D", 20000, [](Rules* r) { r->job.persist_seen = false; }},
      {"a marker is void after a later choice", "D", 35000000, [](Rules* r) { r->job.void_markers = false; }},
  };
  return mutants;
}

}  // namespace ckptd::sim
