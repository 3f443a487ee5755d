// A question that any of several agents can answer: the first good answer counts. They are asked in their order, the
// next one when one has nothing, and beside it when it has not answered within a second. An agent that stands still
// costs a restore that second, and not the deadline of its answer.
//
// On the loop's thread. Destroying it ends what is under way.
#ifndef CKPTD_DAEMON_PROTECT_FIRST_ANSWER_H_
#define CKPTD_DAEMON_PROTECT_FIRST_ANSWER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/callback_scope.h"
#include "daemon/base/clock.h"
#include "daemon/os/loop.h"
#include "daemon/protect/piece_source.h"

namespace ckptd::protect {

class FirstAnswer {
 public:
  struct Asked {
    std::string agent;
    v1::DescribeRequest request;
  };
  struct Handler {
    // What is not right counts as no answer.
    std::function<absl::Status(const v1::DescribeResponse&)> check;
    // `who` of the asked has none.
    std::function<void(size_t who, const absl::Status& why)> lost;
    // Once, in a turn of its own: the answer, or why the last one had none.
    std::function<void(const absl::StatusOr<v1::DescribeResponse>&)> told;
  };

  // `none`: what is told when nobody is asked.
  FirstAnswer(Loop& loop, const Clock& clock, PieceSource::Calls calls, PieceSource::Attempt attempt,
              std::vector<Asked> asked, absl::Status none, Handler handler);
  void Start() { AskNext(); }

 private:
  void AskNext();
  void Answered(size_t who, const absl::StatusOr<v1::DescribeResponse>& answer);
  void End(absl::StatusOr<v1::DescribeResponse> answer);

  Loop& loop_;
  const Clock& clock_;
  const PieceSource::Calls calls_;
  const PieceSource::Attempt attempt_;
  const std::vector<Asked> asked_;
  Handler handler_;
  std::vector<std::unique_ptr<PieceSource>> sources_;
  absl::Status last_;
  size_t next_ = 0;  // of asked_
  size_t open_ = 0;  // questions
  bool over_ = false;
  CallbackScope scope_;
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_FIRST_ANSWER_H_
