#include "cli/eval_stats.h"

#include <math.h>

static const double z = 1.959963984540054; /* the normal distribution's 97.5 % point */
static const double pi = 3.141592653589793;

enum { BISECTIONS = 60 };

static double clamp(double x, double low, double high) {
    return x < low ? low : x > high ? high : x;
}

/* E. B. Wilson, 1927. */
di_interval di_eval_stats_proportion(int64_t right, int64_t n) {
    double total = (double)n, p = (double)right / total, zz = z * z / total;
    double middle = (p + zz / 2) / (1 + zz);
    double half = z / (1 + zz) * sqrt(p * (1 - p) / total + zz / (4 * total));
    return (di_interval){right == 0 ? 0 : clamp(middle - half, 0, 1),
                         right == n ? 1 : clamp(middle + half, 0, 1)};
}

/* The score of "the difference is d" (T. Tango, 1998): how far the difference that was seen is from
 * d, in standard deviations that the likeliest distribution with difference d has. In it, q is the
 * probability of a first that is right alone. Falls as d grows. */
static double paired_score(double first, double second, double n, double d) {
    double b = -second - first + (2 * n - second + first) * d;
    double c = -first * d * (1 - d);
    double root = b * b - 8 * n * c;
    double q = (sqrt(root > 0 ? root : 0) - b) / (4 * n);
    double variance = n * (2 * q + d * (1 - d));
    double distance = second - first - n * d;
    if (variance <= 0) return distance > 0 ? INFINITY : distance < 0 ? -INFINITY : 0;
    return distance / sqrt(variance);
}

/* Where the score is `level`, between two differences. */
static double paired_limit(double first, double second, double n, double low, double high,
                           double level) {
    for (int i = 0; i < BISECTIONS; i++) {
        double middle = (low + high) / 2;
        if (paired_score(first, second, n, middle) > level) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return (low + high) / 2;
}

di_interval di_eval_stats_paired(int64_t only_first, int64_t only_second, int64_t n) {
    double first = (double)only_first, second = (double)only_second, total = (double)n;
    double seen = (second - first) / total;
    return (di_interval){paired_limit(first, second, total, -1, seen, z),
                         paired_limit(first, second, total, seen, 1, -z)};
}

/* The probability of [-t, t], by the finite series that there is for whole degrees of freedom. */
static double t_middle(double t, int64_t freedom) {
    double angle = atan(t / sqrt((double)freedom)), cosine = cos(angle);
    double term = freedom % 2 ? cosine : 1, sum = 0;
    for (int64_t i = 2 + freedom % 2; i <= freedom; i += 2) {
        sum += term;
        term *= cosine * cosine * (double)(i - 1) / (double)i;
    }
    return freedom % 2 ? 2 / pi * (angle + sin(angle) * sum) : sin(angle) * sum;
}

double di_eval_stats_t(int64_t freedom) {
    if (freedom > 10000) return z; /* closer than a figure is printed */
    double low = 0, high = 16;
    for (int i = 0; i < BISECTIONS; i++) {
        double middle = (low + high) / 2;
        if (t_middle(middle, freedom) < 0.95) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return (low + high) / 2;
}

double di_eval_stats_average(const double *values, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += values[i];
    return sum / (double)n;
}

di_interval di_eval_stats_mean(const double *values, int64_t n) {
    double mean = di_eval_stats_average(values, n), squares = 0;
    for (int64_t i = 0; i < n; i++) squares += (values[i] - mean) * (values[i] - mean);
    double half = di_eval_stats_t(n - 1) * sqrt(squares / (double)(n - 1) / (double)n);
    return (di_interval){mean - half, mean + half};
}
