// The storage operations of room job: request in, answer out. Each blocks as long as the storage does, so they run on
// executor threads; any number at a time.
#ifndef CKPTD_DAEMON_APP_JOB_STORAGE_H_
#define CKPTD_DAEMON_APP_JOB_STORAGE_H_

#include <atomic>
#include <string>
#include <utility>

#include "daemon/job/events.h"
#include "daemon/metrics/agent_metrics.h"
#include "daemon/storage/store.h"

namespace ckptd {

class JobStorage {
 public:
  // `cancel` ends a verification early. All but `job` outlive it.
  JobStorage(Store& store, AgentMetrics& metrics, std::string job, const std::atomic<bool>* cancel = nullptr)
      : store_(store), metrics_(metrics), job_(std::move(job)), cancel_(cancel) {}

  [[nodiscard]] job::NewestRead operator()(const job::ReadNewest& request) const;
  [[nodiscard]] job::AttemptCreated operator()(const job::CreateAttempt& request) const;
  [[nodiscard]] job::Listed operator()(const job::List& request) const;
  [[nodiscard]] job::DecisionCreated operator()(const job::CreateDecision& request) const;
  [[nodiscard]] job::ManifestCreated operator()(const job::CreateManifest& request) const;
  [[nodiscard]] job::NewestChecked operator()(const job::CheckNewest& request) const;
  [[nodiscard]] job::StepVerified operator()(const job::VerifyStep& request) const;
  [[nodiscard]] job::RankVerified operator()(const job::VerifyRank& request) const;
  [[nodiscard]] job::MarkerPut operator()(const job::PutMarker& request) const;
  [[nodiscard]] job::StepDeleted operator()(const job::DeleteStep& request) const;
  [[nodiscard]] job::PinLooked operator()(const job::LookAtPin& request) const;
  [[nodiscard]] job::RecordsPruned operator()(const job::PruneRecords& request) const;

 private:
  Store& store_;
  AgentMetrics& metrics_;
  std::string job_;
  const std::atomic<bool>* cancel_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_JOB_STORAGE_H_
