// Worked examples of the guides.
import { type State, limit } from "./scene";

export interface Preset {
  title: string;
  /** What there is to see. */
  point: string;
  state: State;
}

const bare: Omit<State, "limits" | "calls"> = {
  asking: "alone",
  lend: "",
  reserve: false,
  work: "",
  used: "",
  dies: "",
  lapses_after: "",
  funds: "",
  service: "",
  seed: "",
  watch: "",
  clicks: [],
};

export const PRESETS: readonly Preset[] = [
  {
    title: "A dashboard of ten calls",
    point:
      "Ten calls at once want a capacity of ten. With five, half of each burst is refused, however long the pause.",
    state: {
      ...bare,
      limits: [
        limit("capacity_10", "token_bucket", { rate: "5", per: "1s", capacity: "10" }),
        limit("capacity_5", "token_bucket", { rate: "5", per: "1s", capacity: "5" }),
      ],
      calls: "burst size=10 every=2s for=10s key=dashboard",
    },
  },
  {
    title: "The edge of a window",
    point:
      "Around its edge a fixed window lets two hundred calls through within a second. A sliding window has no edge.",
    state: {
      ...bare,
      limits: [
        limit("fixed", "fixed_window", { rate: "100", per: "1m", start: "0s" }),
        limit("sliding", "sliding_window", { rate: "100", per: "1m" }),
      ],
      calls: "burst size=100 every=1h from=59500ms for=1s\nburst size=100 every=1h from=60500ms for=60s",
    },
  },
  {
    title: "A noisy neighbour",
    point:
      "Under one limit for all, who floods takes most of the tokens. With a limit for each key, the quiet ones pass.",
    state: {
      ...bare,
      limits: [
        limit("per_tenant", "token_bucket", { rate: "20", per: "1s" }),
        limit("total", "token_bucket", { rate: "60", per: "1s", global: true }),
      ],
      calls: "poisson rate=5 per=1s clients=4 key=quiet for=15s\nconstant rate=200 per=1s key=noisy for=15s",
    },
  },
  {
    title: "Shares that are lent",
    point:
      "Limits for each waste what the quiet ones leave. Shares lend it: nobody is refused within his own, and little is wasted.",
    state: {
      ...bare,
      limits: [
        limit("own", "token_bucket", { rate: "10", per: "1s", capacity: "20" }),
        limit("shared", "token_bucket", { rate: "100", per: "1s", capacity: "300", global: true }),
      ],
      asking: "lend",
      lend: "200",
      calls:
        "poisson rate=4 per=1s clients=9 key=quiet for=10s\nburst size=10 every=5s clients=9 key=quiet for=10s\npoisson rate=500 per=1s key=noisy for=10s",
    },
  },
  {
    title: "A queue of jobs",
    point:
      "Thirty jobs reserve from one a second. None is refused: each is told when. A capacity of five starts five at once.",
    state: {
      ...bare,
      reserve: true,
      limits: [
        limit("spaced", "token_bucket", { rate: "1", per: "1s", capacity: "0", max_reserved: "100" }),
        limit("five_at_once", "token_bucket", { rate: "1", per: "1s", capacity: "5", max_reserved: "100" }),
      ],
      calls: "burst size=30 every=1h for=35s key=jobs",
    },
  },
  {
    title: "Bucket or steps",
    point:
      "Both bring five tokens in ten seconds: one drip by drip, the other all five at each step after the first use.",
    state: {
      ...bare,
      limits: [
        limit("drips", "token_bucket", { rate: "5", per: "10s", capacity: "20" }),
        limit("steps", "stepped_bucket", { rate: "5", per: "10s", capacity: "20" }),
      ],
      calls: "poisson rate=8 per=10s for=90s key=uploads",
    },
  },
  {
    title: "Work at once",
    point:
      "At most four at once. Work that ends gives its place back; with a short lease, so does work that lasts too long.",
    state: {
      ...bare,
      work: "3s",
      limits: [
        limit("long_lease", "concurrency", { rate: "4", per: "30s" }),
        limit("short_lease", "concurrency", { rate: "4", per: "1s" }),
      ],
      calls: "poisson rate=2 per=1s for=30s key=renders",
    },
  },
  {
    title: "A budget whose client dies",
    point:
      "An estimate of 2000 is settled at 400 after 5 s, and what comes back is granted again. Every fifth client dies: its tokens come back after 20 s.",
    state: {
      ...bare,
      work: "5s",
      used: "400",
      dies: "5",
      lapses_after: "20s",
      limits: [
        limit("sliding", "sliding_window", { rate: "15000", per: "1m" }),
        limit("bucket", "token_bucket", { rate: "15000", per: "1m" }),
      ],
      calls: "burst size=5 every=8s cost=2000 key=tenant for=100s",
    },
  },
  {
    title: "A wallet",
    point: "Only a purchase fills it. With an overdraft it ends lower, and then both refuse, and no wait helps.",
    state: {
      ...bare,
      funds: "40",
      limits: [limit("prepaid", "wallet"), limit("overdraft", "wallet", { max_reserved: "20" })],
      calls: "poisson rate=3 per=1s for=30s key=tenant",
    },
  },
  {
    title: "A plan, then credits",
    point: "Where the plan of twenty a minute refuses, bought credits pay. With the next minute the plan pays again.",
    state: {
      ...bare,
      asking: "in_turn",
      funds: "30",
      limits: [limit("plan", "fixed_window", { rate: "20", per: "1m", start: "0s" }), limit("credits", "wallet")],
      calls: "poisson rate=1 per=1s for=120s key=customer",
    },
  },
  {
    title: "A service that falters",
    point:
      "The service takes 50 a second, and for a minute 15. Under a fixed limit a third of the calls fail. Failures slow the other one down, and 3 % fail.",
    state: {
      ...bare,
      service: "rate=50 per=1s falters=15 from=10s for=60s",
      limits: [
        limit("fixed", "token_bucket", { rate: "50", per: "1s", capacity: "10", global: true }),
        limit("follows", "token_bucket", { rate: "50", per: "1s", capacity: "10", global: true, follows: "30s" }),
      ],
      calls: "poisson rate=60 per=1s for=120s key=callers",
    },
  },
];
