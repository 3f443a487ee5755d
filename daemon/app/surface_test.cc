#include "daemon/app/surface.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using transport::BulkWay;

TEST(ShowSpeedsTest, APeerThatLeftIsShownNoMore) {
  Family<Gauge> family({"x", "x", {"peer", "way"}});
  const auto shown = [&family] {
    std::map<LabelValues, double> all;
    family.ForEach([&](const LabelValues& labels, const Gauge& gauge) { all[labels] = gauge.value(); });
    return all;
  };
  ShowSpeeds({{"n2", BulkWay::kTls, 2e9, true}, {"n2", BulkWay::kGrpc, 1e9, false}, {"n3", BulkWay::kTls, 3e9, true}},
             &family);
  EXPECT_THAT(shown(), ElementsAre(Pair(LabelValues{"n2", "grpc"}, 1e9), Pair(LabelValues{"n2", "tls"}, 2e9),
                                   Pair(LabelValues{"n3", "tls"}, 3e9)));
  ShowSpeeds({{"n3", BulkWay::kTls, 4e9, true}}, &family);
  EXPECT_THAT(shown(), ElementsAre(Pair(LabelValues{"n3", "tls"}, 4e9)));
  ShowSpeeds({}, &family);
  EXPECT_TRUE(shown().empty());
}

}  // namespace
}  // namespace ckptd
