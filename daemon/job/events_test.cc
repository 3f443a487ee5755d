#include "daemon/job/events.h"

#include <gtest/gtest.h>

#include "daemon/base/trace_test_util.h"

namespace ckptd::job {
namespace {

TEST(Trace, NamesEachEventAndEffect) {
  ExpectEachIsNamed<Event>();
  ExpectEachIsNamed<Effect>();
}

TEST(Trace, TellsWhatThereIsToTell) {
  PutMarker marker;
  marker.op = 4;
  marker.id = {2, 900};
  marker.attempt = 3;
  EXPECT_EQ(ToString(Effect(marker)), "PutMarker #4 " + ckptd::ToString(marker.id) + " by a3");
}

}  // namespace
}  // namespace ckptd::job
