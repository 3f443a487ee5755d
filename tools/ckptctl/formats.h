// The tables and sentences of the commands, from messages: the agent's, and what was planned. Pure: text in, text out.
#ifndef CKPTD_TOOLS_CKPTCTL_FORMATS_H_
#define CKPTD_TOOLS_CKPTCTL_FORMATS_H_

#include <cstdint>
#include <string>

#include "proto/ckptd/v1/admin.pb.h"
#include "proto/ckptd/v1/plan.pb.h"
#include "proto/ckptd/v1/status.pb.h"

namespace ckptd {

[[nodiscard]] std::string FormatStatus(const v1::StatusView& view);
// False when the operator has something to mend: the storage does not take what it is given.
[[nodiscard]] bool IsHealthy(const v1::StatusView& view);

[[nodiscard]] std::string FormatList(const v1::ListResponse& list, int64_t now_unix_ns);
[[nodiscard]] std::string FormatTensors(const v1::InspectResponse& tensors);
[[nodiscard]] std::string FormatDamage(const v1::Damage& damage);
// "job gpt: step 100 (attempt 3) is durable"
[[nodiscard]] std::string FormatFlush(const std::string& job, const v1::FlushResponse& flush);
[[nodiscard]] std::string FormatGc(const v1::GcResponse& gc, bool dry_run);
[[nodiscard]] std::string FormatTrace(const v1::TraceResponse& trace);

[[nodiscard]] std::string FormatPlan(const v1::Plan& plan);

[[nodiscard]] std::string FormatAge(double seconds);  // "4.0 s ago"

}  // namespace ckptd

#endif  // CKPTD_TOOLS_CKPTCTL_FORMATS_H_
